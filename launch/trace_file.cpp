#include "launch/trace_file.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

using engine::TracedStep;
static_assert(std::is_trivially_copyable_v<TracedStep>);

std::vector<TracedStep> unpack_steps(const std::string& packed) {
  std::vector<TracedStep> steps(packed.size() / sizeof(TracedStep));
  if (!steps.empty()) std::memcpy(steps.data(), packed.data(), steps.size() * sizeof(TracedStep));
  return steps;
}

nlohmann::json event_of(const TracedStep& step, size_t rank, int64_t origin_ns) {
  const char* kind = step.decode_only ? "decode" : "prefill";
  return {{"name", format("{} {}", kind, step.tokens)},
          {"cat", kind},
          {"ph", "X"},
          {"ts", static_cast<double>(step.begin_ns - origin_ns) * 1e-3},
          {"dur", static_cast<double>(step.end_ns - step.begin_ns) * 1e-3},
          {"pid", rank},
          {"tid", 0},
          {"args", {{"step", step.step}, {"tokens", step.tokens}}}};
}

nlohmann::json name_of(size_t rank) {
  return {
      {"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", format("rank {}", rank)}}}};
}

}  // namespace

std::string pack_steps(std::span<const TracedStep> steps) {
  std::string packed(steps.size_bytes(), '\0');
  if (!steps.empty()) std::memcpy(packed.data(), steps.data(), steps.size_bytes());
  return packed;
}

Status write_trace_file(const std::string& path, std::span<const std::string> packed) {
  std::vector<std::vector<TracedStep>> ranks;
  ranks.reserve(packed.size());
  for (const std::string& one : packed) ranks.push_back(unpack_steps(one));
  int64_t origin = std::numeric_limits<int64_t>::max();
  for (const auto& steps : ranks)
    for (const TracedStep& step : steps) origin = std::min(origin, step.begin_ns);
  nlohmann::json events = nlohmann::json::array();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    events.push_back(name_of(rank));
    for (const TracedStep& step : ranks[rank]) events.push_back(event_of(step, rank, origin));
  }
  std::ofstream file(path);
  file << nlohmann::json{{"traceEvents", events}}.dump() << "\n";
  file.close();
  if (!file) return unavailable(format("--trace-file {}: cannot be written", path));
  return ok_status();
}

}  // namespace llm_dist::launch
