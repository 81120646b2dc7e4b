// The file of `--trace-file`: every rank's steps in the Trace Event Format, which chrome://tracing and
// ui.perfetto.dev open. A process is a rank.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/engine/step_trace.h"

namespace llm_dist::launch {

// One rank's steps as text for the rank that writes the file.
std::string pack_steps(std::span<const engine::TracedStep> steps);

// `packed`: by rank. Times start at the first step of any rank; the clocks of a node's ranks are one clock,
// those of several nodes differ by what their hosts' clocks do.
Status write_trace_file(const std::string& path, std::span<const std::string> packed);

}  // namespace llm_dist::launch
