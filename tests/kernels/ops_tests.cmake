llm_dist_test(cpu_ops_test LABEL cpu SOURCES cpu_ops_test.cpp LIBS llm_dist_kernels hwy::hwy)
llm_dist_test(cpu_attention_test LABEL cpu SOURCES cpu_attention_test.cpp LIBS llm_dist_kernels hwy::hwy)
llm_dist_test(cpu_sample_test LABEL cpu SOURCES cpu_sample_rules_test.cpp cpu_sample_test.cpp LIBS llm_dist_kernels hwy::hwy)
llm_dist_test(cpu_ops_allocation_test LABEL cpu
  SOURCES cpu_ops_allocation_test.cpp ../base/allocation_count.cpp LIBS llm_dist_kernels hwy::hwy)

# Not a test: decode attention in GB/s, prompt attention in GFLOP/s, sampling in µs a row.
add_executable(cpu_ops_bench cpu_ops_bench.cpp)
llm_dist_target_defaults(cpu_ops_bench)
target_link_libraries(cpu_ops_bench PRIVATE llm_dist_kernels)
if(LLM_DIST_HAS_CUDA)
  llm_dist_test(cuda_ops_test LABEL gpu TIMEOUT 900
    SOURCES cuda_attention_test.cpp cuda_cluster_of_row_test.cpp cuda_f8_linear_test.cpp cuda_fused_row_test.cpp cuda_gated_test.cpp cuda_grouped_codes_test.cpp cuda_norm_codes_test.cpp cuda_linear_shares_test.cpp cuda_linear_test.cpp cuda_ops_test.cpp cuda_prompt_linear_test.cpp cuda_row_ops_test.cpp cuda_row_terms_test.cpp
            norms_of_clusters.cu LIBS llm_dist_kernels hwy::hwy CUDA::cudart)
  set_target_properties(cuda_ops_test PROPERTIES INSTALL_RPATH "${CMAKE_INSTALL_RPATH};${CUDAToolkit_LIBRARY_DIR}")
endif()
llm_dist_test(matmul_choices_test LABEL cpu
  SOURCES matmul_choices_test.cpp ${PROJECT_SOURCE_DIR}/kernels/cuda/matmul_choices.cpp LIBS llm_dist_base)
