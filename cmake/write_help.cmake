# At installation: writes the completions and man pages of `llm_dist_program` to `llm_dist_share`, as they lie under share/.
function(llm_dist_write_completion shell file)
  execute_process(COMMAND ${llm_dist_program} completion ${shell} OUTPUT_VARIABLE script COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE ${llm_dist_share}/${file} "${script}")
endfunction()

file(REMOVE_RECURSE ${llm_dist_share})
llm_dist_write_completion(bash bash-completion/completions/llm-dist)
llm_dist_write_completion(zsh zsh/site-functions/_llm-dist)
llm_dist_write_completion(fish fish/vendor_completions.d/llm-dist.fish)
execute_process(COMMAND ${llm_dist_program} man --output-dir ${llm_dist_share}/man/man1 COMMAND_ERROR_IS_FATAL ANY)
