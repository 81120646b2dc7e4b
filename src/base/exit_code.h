// The exit codes by which llm-dist says that it refused what it was asked, and would again: whoever started
// it need not try. docs/errors.md has the others.
#pragma once

namespace llm_dist {

constexpr int kRefusedExitCode = 78;  // EX_CONFIG
// What CLI11 ends with for a command line that it cannot read.
constexpr int kFirstFlagsExitCode = 100;
constexpr int kLastFlagsExitCode = 114;

constexpr bool is_refusal(int exit_code) {
  return exit_code == kRefusedExitCode ||
         (exit_code >= kFirstFlagsExitCode && exit_code <= kLastFlagsExitCode);
}

}  // namespace llm_dist
