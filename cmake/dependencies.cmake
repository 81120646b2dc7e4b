# Each foreign library is found here once; only the folder that owns it links it.
# The wheels that scripts/deps.sh unpacks stand in LLM_DIST_DEPS_DIR.
list(APPEND CMAKE_PREFIX_PATH ${LLM_DIST_DEPS_DIR}/onednn)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(OpenSSL 3 REQUIRED)
find_package(dnnl 3.0 CONFIG REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(hwy 1.0 CONFIG REQUIRED)
find_package(MPI COMPONENTS C)
# By hand: Debian's package file wants the HTTP server and client of parts that nothing here uses.
find_path(LLM_DIST_PROMETHEUS_INCLUDE prometheus/registry.h REQUIRED)
find_library(LLM_DIST_PROMETHEUS_LIBRARY prometheus-cpp-core REQUIRED)
add_library(prometheus-cpp::core UNKNOWN IMPORTED)
set_target_properties(prometheus-cpp::core PROPERTIES IMPORTED_LOCATION ${LLM_DIST_PROMETHEUS_LIBRARY}
                                                      INTERFACE_INCLUDE_DIRECTORIES ${LLM_DIST_PROMETHEUS_INCLUDE})
find_package(SQLite3 3.37 REQUIRED)
# By hand and as headers: Debian's package file would link a library, which is one more to install and to carry along.
find_path(LLM_DIST_TOML_INCLUDE toml++/toml.h REQUIRED)
add_library(tomlplusplus::tomlplusplus INTERFACE IMPORTED)
set_target_properties(tomlplusplus::tomlplusplus PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${LLM_DIST_TOML_INCLUDE})
