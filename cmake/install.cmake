# What `cmake --install` lays down: a tree that may be moved. The program and its modules find each other, and the
# libraries beside them, relative to themselves; completions and man pages are written from the flags.
#
# Components: program, mpi, cuda, nccl. Two more that only packages hold (cmake/package.cmake): libraries, the
# distribution's own libraries beside the program, and licences, the texts of everything inside.
option(LLM_DIST_BUNDLE "Install libraries from outside the system's folders (oneDNN) beside the program" ON)

set(llm_dist_library_folder lib/llm-dist)
# The C library and the compiler's own stay the host's: one of each a process, and modules need the host's.
set(llm_dist_host_libraries "^ld-linux" "^lib(c|m|dl|rt|pthread|mvec|gcc_s|stdc\\+\\+)\\.so")
set(llm_dist_system_folders "^/lib" "^/usr/lib")

# Where one library from outside needs another and does not say where that is.
set(llm_dist_search_folders "")
foreach(prefix ${CMAKE_PREFIX_PATH})
  list(APPEND llm_dist_search_folders ${prefix}/lib ${prefix}/lib64 ${prefix}/lib/${CMAKE_LIBRARY_ARCHITECTURE})
endforeach()

set_target_properties(llm-dist PROPERTIES
                      INSTALL_RPATH "$ORIGIN/../${llm_dist_library_folder};${CMAKE_INSTALL_RPATH}")
install(TARGETS llm-dist RUNTIME_DEPENDENCY_SET llm_dist_libraries RUNTIME DESTINATION bin COMPONENT program)
if(LLM_DIST_BUNDLE)
  # Built, the program also searches the folders that it was linked from (cmake/toolchain.cmake). Those stay behind.
  install(CODE "
    file(RPATH_SET FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/bin/llm-dist\"
         NEW_RPATH \"\\\$ORIGIN/../${llm_dist_library_folder}\")
  " COMPONENT program)
  install(RUNTIME_DEPENDENCY_SET llm_dist_libraries
          PRE_EXCLUDE_REGEXES ${llm_dist_host_libraries} POST_EXCLUDE_REGEXES ${llm_dist_system_folders}
          DIRECTORIES ${llm_dist_search_folders}
          LIBRARY DESTINATION ${llm_dist_library_folder} COMPONENT program)
  # Those of the system's folders, and not the ones above again.
  install(RUNTIME_DEPENDENCY_SET llm_dist_libraries
          PRE_EXCLUDE_REGEXES ${llm_dist_host_libraries} POST_INCLUDE_REGEXES ${llm_dist_system_folders}
          POST_EXCLUDE_REGEXES "." DIRECTORIES ${llm_dist_search_folders}
          LIBRARY DESTINATION ${llm_dist_library_folder} COMPONENT libraries EXCLUDE_FROM_ALL)
endif()

# Written by the program that is being installed, so that they name just its flags.
set(llm_dist_written ${PROJECT_BINARY_DIR}/share)
install(CODE "
  set(llm_dist_program \"$<TARGET_FILE:llm-dist>\")
  set(llm_dist_share \"${llm_dist_written}\")
  include(\"${PROJECT_SOURCE_DIR}/cmake/write_help.cmake\")
" COMPONENT program)
install(DIRECTORY ${llm_dist_written}/ DESTINATION share COMPONENT program)

# For Environment Modules and Lmod.
configure_file(${PROJECT_SOURCE_DIR}/packaging/modulefile.in ${PROJECT_BINARY_DIR}/modulefile @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/modulefile DESTINATION share/modulefiles/llm-dist RENAME ${PROJECT_VERSION}
        COMPONENT program)

# What a cluster's user hands to mpirun and Slurm.
install(PROGRAMS ${PROJECT_SOURCE_DIR}/launch/mpirun.sh DESTINATION share/llm-dist COMPONENT program)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/launch/slurm DESTINATION share/llm-dist COMPONENT program)

install(CODE "
  execute_process(COMMAND python3 \"${PROJECT_SOURCE_DIR}/scripts/licences.py\" --onednn \"${LLM_DIST_DEPS_DIR}/onednn\"
                          \"${PROJECT_BINARY_DIR}/licences\"
                  COMMAND_ERROR_IS_FATAL ANY)
" COMPONENT licences EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_BINARY_DIR}/licences DESTINATION share/doc/llm-dist COMPONENT licences EXCLUDE_FROM_ALL)
