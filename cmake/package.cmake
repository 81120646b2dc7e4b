# cpack: a relocatable archive that carries every library but the C library and the compiler's own, and Debian packages
# that depend on the distribution's. Neither holds the CUDA and NCCL modules.
set(LLM_DIST_PACKAGE_CONTACT "llm-dist maintainers <root@localhost>" CACHE STRING "Who is named in the Debian packages")

set(CPACK_GENERATOR "TGZ;DEB")
set(CPACK_PACKAGE_NAME llm-dist)
set(CPACK_PACKAGE_VENDOR llm-dist)
set(CPACK_PACKAGE_CONTACT "${LLM_DIST_PACKAGE_CONTACT}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed inference of large language models")
set(CPACK_PACKAGE_FILE_NAME "llm-dist-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program licences mpi)  # cmake/package_options.cmake: the archive also holds libraries
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package_options.cmake)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
get_target_property(llm_dist_onednn DNNL::dnnl LOCATION)
get_filename_component(llm_dist_onednn ${llm_dist_onednn} DIRECTORY)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${llm_dist_onednn})
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME llm-dist)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION
    "One program that serves a model across devices and nodes over an OpenAI-compatible HTTP API, with its command line,
completions and man pages. Several ranks meet over TCP, or over MPI with llm-dist-mpi.")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS llm-dist-mpi)
set(CPACK_DEBIAN_MPI_PACKAGE_NAME llm-dist-mpi)
set(CPACK_DEBIAN_MPI_DESCRIPTION
    "The module with which the ranks of llm-dist that mpirun or a batch system started meet over MPI.")
set(CPACK_DEBIAN_MPI_PACKAGE_DEPENDS "llm-dist (= ${PROJECT_VERSION}), openmpi-bin")
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)

include(CPack)
cpack_add_component_group(program)
cpack_add_component(program GROUP program)
cpack_add_component(licences GROUP program)
cpack_add_component_group(mpi)
cpack_add_component(mpi GROUP mpi)
cpack_add_component(libraries GROUP program)
