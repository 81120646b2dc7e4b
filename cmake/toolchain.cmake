# Compiler cache and sanitizers, for every target.
find_program(LLM_DIST_CCACHE ccache)
if(LLM_DIST_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${LLM_DIST_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${LLM_DIST_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${LLM_DIST_CCACHE})
endif()

if(LLM_DIST_SANITIZE)
  add_compile_options(-fsanitize=${LLM_DIST_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LLM_DIST_SANITIZE})
  if(LLM_DIST_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()

find_package(Threads REQUIRED)

# Programs and modules find the libraries that they were linked with, built or installed; CMake leaves out those in the
# tree itself. The same search path in both: else CMake pads the built one with empty entries: the current folder.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
set(CMAKE_INSTALL_RPATH ${LLM_DIST_DEPS_DIR}/onednn/lib)
