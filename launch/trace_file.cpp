#include "launch/trace_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

using nlohmann::json;

TraceSpan step_span(bool decode_only, int64_t tokens, uint64_t step, int64_t begin_ns, int64_t end_ns) {
  const char* kind = decode_only ? "decode" : "prefill";
  return {.name = format("{} {}", kind, tokens),
          .category = kind,
          .begin_ns = begin_ns,
          .end_ns = end_ns,
          .step = step,
          .tokens = tokens};
}

// The order of pack_spans: name, category, begin, end, step, tokens.
json event_of(const json& span, size_t rank, int64_t origin_ns) {
  auto begin_ns = span[2].get<int64_t>();
  return {{"name", span[0]},
          {"cat", span[1]},
          {"ph", "X"},
          {"ts", static_cast<double>(begin_ns - origin_ns) * 1e-3},
          {"dur", static_cast<double>(span[3].get<int64_t>() - begin_ns) * 1e-3},
          {"pid", rank},
          {"tid", 0},
          {"args", {{"step", span[4]}, {"tokens", span[5]}}}};
}

json name_of(size_t rank) {
  return {
      {"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", format("rank {}", rank)}}}};
}

// The share of the time from a rank's first step to its last, without a tenth at either end, that steps took.
double busy_share(const json& steps) {
  int64_t first = std::numeric_limits<int64_t>::max();
  int64_t last = std::numeric_limits<int64_t>::min();
  for (const json& step : steps) {
    first = std::min(first, step[2].get<int64_t>());
    last = std::max(last, step[3].get<int64_t>());
  }
  if (first >= last) return 0;
  const int64_t begin = first + (last - first) / 10;
  const int64_t end = last - (last - first) / 10;
  int64_t busy = 0;
  for (const json& step : steps) {
    busy +=
        std::max(int64_t{0}, std::min(end, step[3].get<int64_t>()) - std::max(begin, step[2].get<int64_t>()));
  }
  return static_cast<double>(busy) / static_cast<double>(std::max(int64_t{1}, end - begin));
}

std::string describe_busy(const std::vector<json>& ranks) {
  std::string line = "busy with steps, without the first and the last tenth of the time:";
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const double percent = std::round(1e3 * busy_share(ranks[rank])) / 10;
    line += format("{} rank {} {} %", rank == 0 ? "" : ",", rank, percent);
  }
  return line + "\n";
}

}  // namespace

const char* category_of(kernels::CallKind kind) {
  switch (kind) {
    case kernels::CallKind::kOp: return "op";
    case kernels::CallKind::kCollective: return "collective";
    case kernels::CallKind::kCopy: return "copy";
    case kernels::CallKind::kWait: return "wait";
  }
  return "op";
}

std::vector<TraceSpan> spans_of(std::span<const engine::TracedStep> steps) {
  std::vector<TraceSpan> spans;
  spans.reserve(steps.size());
  for (const engine::TracedStep& step : steps)
    spans.push_back(step_span(step.decode_only, step.tokens, step.step, step.begin_ns, step.end_ns));
  return spans;
}

std::vector<TraceSpan> spans_of(std::span<const engine::ProfiledStep> steps) {
  std::vector<TraceSpan> spans;
  size_t num_ops = 0;
  for (const engine::ProfiledStep& step : steps) num_ops += step.ops.size();
  spans.reserve(steps.size() + num_ops);
  for (const engine::ProfiledStep& step : steps) {
    spans.push_back(step_span(step.decode_only, step.tokens, step.step, step.begin_ns, step.end_ns));
    for (const engine::ProfiledOp& op : step.ops)
      spans.push_back({op.name, category_of(op.kind), op.begin_ns, op.end_ns, step.step, step.tokens});
  }
  return spans;
}

std::string pack_spans(std::span<const TraceSpan> spans) {
  json packed = json::array();
  for (const TraceSpan& span : spans)
    packed.push_back(
        json::array({span.name, span.category, span.begin_ns, span.end_ns, span.step, span.tokens}));
  return packed.dump();
}

Status write_trace_file(const TraceFile& trace, std::span<const std::string> packed) {
  std::vector<json> ranks;
  ranks.reserve(packed.size());
  for (const std::string& one : packed) ranks.push_back(json::parse(one));
  if (trace.prints_busy) std::fputs(describe_busy(ranks).c_str(), stderr);
  int64_t origin = std::numeric_limits<int64_t>::max();
  for (const json& spans : ranks)
    for (const json& span : spans) origin = std::min(origin, span[2].get<int64_t>());
  json events = json::array();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    events.push_back(name_of(rank));
    for (const json& span : ranks[rank]) events.push_back(event_of(span, rank, origin));
  }
  json whole = {{"traceEvents", std::move(events)}};
  if (!trace.profile.empty()) whole["profile"] = json::parse(trace.profile);
  std::ofstream file(trace.path);
  file << whole.dump() << "\n";
  file.close();
  if (!file) return unavailable(format("{} {}: cannot be written", trace.flag, trace.path));
  return ok_status();
}

}  // namespace llm_dist::launch
