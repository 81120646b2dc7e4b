# llm_dist_library(NAME SOURCES … PUBLIC … PRIVATE …): one static library a folder, position independent so that run-time
# modules can link it, with this project's warnings.
function(llm_dist_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  llm_dist_target_defaults(${name})
  target_link_libraries(${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()

# llm_dist_module(NAME SOURCES … PRIVATE …): a shared object that llm-dist opens at run time, so that llm-dist itself
# needs none of the libraries the module links.
function(llm_dist_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PRIVATE" ${ARGN})
  add_library(${name} MODULE ${ARG_SOURCES})
  llm_dist_target_defaults(${name})
  target_link_libraries(${name} PRIVATE ${ARG_PRIVATE})
  set_target_properties(${name} PROPERTIES PREFIX "lib" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/llm-dist)
  # And the folders of the site's MPI, CUDA and NCCL, where they were linked.
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN")
  string(REPLACE llm_dist_ "" component ${name})
  install(TARGETS ${name} LIBRARY DESTINATION lib/llm-dist COMPONENT ${component})
endfunction()

# llm_dist_test(NAME LABEL cpu|gpu|ranks|fault SOURCES … LIBS …): a GoogleTest executable, registered as one ctest test.
function(llm_dist_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;LIBS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL cpu)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  llm_dist_target_defaults(${name})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE LLM_DIST_SOURCE_DIR="${PROJECT_SOURCE_DIR}" LLM_DIST_BINARY_DIR="${PROJECT_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
endfunction()

# Other compilers have other warnings, of which a build from source must not die: errors are for those of Debian 12 and
# Ubuntu 24.04.
set(known_warnings OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^1[23]\\.")
  set(known_warnings ON)
endif()
option(LLM_DIST_WERROR "Warnings are errors: ON by default for gcc 12 and 13" ${known_warnings})

# -Wno-restrict: gcc 12 at -O3 takes string concatenation for overlapping copies.
function(llm_dist_target_defaults target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_features(${target} PUBLIC cxx_std_20)
  set(warnings -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers -Wno-restrict)
  if(LLM_DIST_WERROR)
    list(APPEND warnings -Werror)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:C,CXX>:${warnings}>")
  list(JOIN warnings "," cuda_warnings)
  set(nvcc_warnings $<$<BOOL:${LLM_DIST_WERROR}>:--Werror=all-warnings>)
  if(NOT CMAKE_CUDA_ARCHITECTURES STREQUAL "90a")
    # Elsewhere kernels for Hopper have no body: nobody calls what they are made of.
    list(APPEND nvcc_warnings --diag-suppress=177)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${nvcc_warnings};-Xcompiler=${cuda_warnings}>")
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
                                             VISIBILITY_INLINES_HIDDEN ON)
endfunction()
