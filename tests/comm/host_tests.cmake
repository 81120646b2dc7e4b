llm_dist_test(
    host_channel_test LABEL cpu SOURCES host_channel_test.cpp host_test_world.cpp LIBS llm_dist_comm)
llm_dist_test(liveness_test LABEL fault SOURCES liveness_test.cpp host_test_world.cpp LIBS llm_dist_comm)
