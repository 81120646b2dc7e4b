# Each foreign library is found here once; only the folder that owns it links it.
# The wheels that scripts/deps.sh unpacks stand in LLM_DIST_DEPS_DIR.
list(APPEND CMAKE_PREFIX_PATH ${LLM_DIST_DEPS_DIR}/onednn)
find_package(spdlog REQUIRED)
find_package(MPI COMPONENTS C)
