llm_dist_test(host_channel_test LABEL cpu SOURCES host_channel_test.cpp own_address_test.cpp rendezvous_test.cpp host_test_world.cpp LIBS llm_dist_comm)
llm_dist_test(host_channel_alloc_test LABEL cpu
  SOURCES host_channel_alloc_test.cpp host_test_world.cpp ../base/allocation_count.cpp LIBS llm_dist_comm)
llm_dist_test(liveness_test LABEL fault SOURCES liveness_test.cpp host_test_world.cpp LIBS llm_dist_comm)

add_executable(host_channel_bench host_channel_bench.cpp host_test_world.cpp)
llm_dist_target_defaults(host_channel_bench)
target_link_libraries(host_channel_bench PRIVATE llm_dist_comm)
