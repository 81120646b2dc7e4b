// Files in the Trace Event Format, which chrome://tracing and ui.perfetto.dev open: those of `--trace-file`
// and `--profile`. A process is a rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/engine/step_profile.h"
#include "src/engine/step_trace.h"

namespace llm_dist::launch {

// An interval; one inside another shows below it.
struct TraceSpan {
  std::string name;
  std::string category;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  uint64_t step = 0;
  int64_t tokens = 0;
};

std::vector<TraceSpan> spans_of(std::span<const engine::TracedStep> steps);
// Each step and its ops.
std::vector<TraceSpan> spans_of(std::span<const engine::ProfiledStep> steps);

// "op", "collective", "copy", "wait"
const char* category_of(kernels::CallKind kind);

// One rank's spans as text for the rank that writes the file.
std::string pack_spans(std::span<const TraceSpan> spans);

struct TraceFile {
  std::string flag;  // that asked for it, for errors
  std::string path;
  std::string profile;  // a JSON value that goes into the file as "profile"; readers of traces skip it
  // Of traces of steps alone: prints what share of the time each rank was busy, but for a tenth at either
  // end, where a pipeline fills and drains.
  bool prints_busy = false;
};

// `packed`: by rank. Times start at the first span of any rank; the clocks of a node's ranks are one clock,
// those of several nodes differ by what their hosts' clocks do.
Status write_trace_file(const TraceFile& trace, std::span<const std::string> packed);

}  // namespace llm_dist::launch
