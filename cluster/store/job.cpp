#include "cluster/store/job.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

using enum JobState;

constexpr std::array<std::string_view, kNumJobStates> kStateNames = {"QUEUED",
                                                                     "STARTING",
                                                                     "RUNNING",
                                                                     "SUSPENDED",
                                                                     "RECOVERING",
                                                                     "CANCELLING",
                                                                     "FINALIZING",
                                                                     "SUCCEEDED",
                                                                     "FAILED",
                                                                     "CANCELLED",
                                                                     "EXPIRED"};
constexpr std::array<std::string_view, 3> kKindNames = {"serve", "batch_inference", "bench"};
constexpr std::array<std::string_view, 2> kIntentNames = {"", "suspend"};
constexpr std::array<std::string_view, 3> kAttemptNames = {"starting", "running", "ended"};

constexpr Transition kTransitions[] = {
    {kQueued, kStarting},       {kQueued, kSuspended},     {kQueued, kFailed},
    {kQueued, kCancelled},      {kQueued, kExpired},       {kStarting, kRunning},
    {kStarting, kRecovering},   {kStarting, kSuspended},   {kStarting, kFailed},
    {kStarting, kCancelling},   {kRunning, kRecovering},   {kRunning, kFinalizing},
    {kRunning, kSuspended},     {kRunning, kFailed},       {kRunning, kCancelling},
    {kRecovering, kStarting},   {kRecovering, kSuspended}, {kRecovering, kFailed},
    {kRecovering, kCancelling}, {kRecovering, kExpired},   {kRecovering, kFinalizing},
    {kSuspended, kQueued},      {kSuspended, kCancelled},  {kSuspended, kExpired},
    {kCancelling, kCancelled},  {kFinalizing, kSucceeded}, {kFinalizing, kFailed},
    {kFinalizing, kExpired},
};

template <typename Enum, size_t N>
Result<Enum> parse_name(std::string_view name,
                        const std::array<std::string_view, N>& names,
                        const char* what) {
  auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return invalid_argument(format("'{}' is no {}", name, what));
  return static_cast<Enum>(found - names.begin());
}

}  // namespace

std::string_view to_string(JobState state) { return kStateNames[static_cast<size_t>(state)]; }
Result<JobState> parse_job_state(std::string_view name) {
  return parse_name<JobState>(name, kStateNames, "state of a job");
}
bool is_terminal(JobState state) { return state >= kSucceeded; }

std::span<const Transition> transitions() { return kTransitions; }
bool may_become(JobState from, JobState to) {
  return std::any_of(std::begin(kTransitions), std::end(kTransitions), [&](const Transition& t) {
    return t.from == from && t.to == to;
  });
}

std::string_view to_string(JobKind kind) { return kKindNames[static_cast<size_t>(kind)]; }
Result<JobKind> parse_job_kind(std::string_view name) {
  return parse_name<JobKind>(name, kKindNames, "kind of job");
}
std::string_view to_string(Intent intent) { return kIntentNames[static_cast<size_t>(intent)]; }
std::string_view to_string(AttemptState state) { return kAttemptNames[static_cast<size_t>(state)]; }

std::string job_name(JobId id) { return "job-" + std::to_string(id); }
Result<JobId> parse_job_name(std::string_view name) {
  constexpr std::string_view kPrefix = "job-";
  JobId id = 0;
  if (name.starts_with(kPrefix)) {
    auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), id);
    // The one spelling: "job-07" names nothing.
    if (error == std::errc() && end == name.data() + name.size() && id > 0 && job_name(id) == name) return id;
  }
  return not_found(format("no such job: {}", name));
}

}  // namespace llm_dist::cluster
