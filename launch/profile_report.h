// The table and the file of `--profile`.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "launch/trace_file.h"
#include "src/engine/profile_summary.h"

namespace llm_dist::launch {

// What holds for the whole run and is said below the tables.
struct ProfileNotes {
  double timestamp_seconds = 0;  // of the profile itself, in each interval and each gap
  bool graphs_dropped = false;   // without --profile, steps would have been replayed
};

// One rank's tables as JSON, for the rank that reports.
std::string pack_profile(std::span<const engine::ProfiledStep> steps, const ProfileNotes& notes);

// The steps that go into the file: the last few of each kind, so that it stays small enough to open.
std::vector<engine::ProfiledStep> shown_steps(std::span<const engine::ProfiledStep> steps);

// All ranks' tables as one JSON value: "rank_profiles", by rank.
std::string merge_profiles(std::span<const std::string> packed);

// For people: rank 0's tables, what the other ranks' steps divide into, and the notes.
std::string describe_profiles(std::span<const std::string> packed);

}  // namespace llm_dist::launch
