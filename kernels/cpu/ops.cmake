# Every op of the CPU but linear. O3: the loops over register arrays must be unrolled.
set(cpu_simd_sources cpu/activation.cpp cpu/attention.cpp cpu/embedding.cpp cpu/rms_norm.cpp cpu/rope_append.cpp
                     cpu/vocab_scan.cpp)
set_source_files_properties(${cpu_simd_sources} PROPERTIES COMPILE_OPTIONS -O3)
target_sources(llm_dist_kernels PRIVATE ${cpu_simd_sources} cpu/argmax.cpp cpu/cpu_ops.cpp cpu/sample.cpp
                                        cpu/sample_row.cpp cpu/token_state.cpp)
target_link_libraries(llm_dist_kernels PRIVATE hwy::hwy)
