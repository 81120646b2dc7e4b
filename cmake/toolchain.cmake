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

# What is installed finds the libraries that it was linked with, in the unpacked wheels too.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
