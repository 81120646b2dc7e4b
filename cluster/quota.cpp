#include "cluster/quota.h"

#include <algorithm>

namespace llm_dist::cluster {

void SlotUse::add(const std::string& project, std::span<const int> taken) {
  slots.take(taken);
  Project& of_project = projects[project];
  ++of_project.num_jobs;
  of_project.num_slots += static_cast<int>(taken.size());
}

Turn judge(const Candidate& candidate, const SlotUse& use, const ProjectQuota& quota) {
  bool fits_quota = quota.max_slots == 0 || candidate.ranks <= quota.max_slots;
  if (candidate.ranks > use.slots.most_ranks() || !fits_quota) return {Verdict::kNever};
  auto found = use.projects.find(candidate.project);
  SlotUse::Project project = found == use.projects.end() ? SlotUse::Project() : found->second;
  bool over = (quota.max_running_jobs != 0 && project.num_jobs >= quota.max_running_jobs) ||
              (quota.max_slots != 0 && project.num_slots + candidate.ranks > quota.max_slots);
  if (over) return {Verdict::kWaitForQuota};
  std::optional<std::vector<int>> chosen = use.slots.choose(candidate.ranks);
  if (!chosen) return {Verdict::kWaitForSlots};
  return {Verdict::kStart, std::move(*chosen)};
}

Turn Queue::next(const Candidate& candidate, const ProjectQuota& quota) {
  Turn turn = judge(candidate, use_, quota);
  if (turn.verdict == Verdict::kNever) return turn;
  const std::string& project = candidate.project;
  bool held_up =
      std::find(projects_held_up_.begin(), projects_held_up_.end(), project) != projects_held_up_.end();
  if (held_up) return {Verdict::kWaitForQuota};
  if (held_up_) return {Verdict::kWaitForSlots};
  if (turn.verdict == Verdict::kStart) use_.add(project, turn.slots);
  if (turn.verdict == Verdict::kStart || candidate.may_be_overtaken) return turn;
  if (turn.verdict == Verdict::kWaitForQuota) {
    projects_held_up_.push_back(project);
  } else {
    held_up_ = true;
  }
  return turn;
}

}  // namespace llm_dist::cluster
