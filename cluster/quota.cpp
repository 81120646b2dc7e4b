#include "cluster/quota.h"

#include <algorithm>

namespace llm_dist::cluster {

void SlotUse::add(const std::string& project, int ranks) {
  num_used += ranks;
  Project& of_project = projects[project];
  ++of_project.num_jobs;
  of_project.num_slots += ranks;
}

Verdict judge(const Candidate& candidate, const SlotUse& use, const ProjectQuota& quota) {
  bool fits_quota = quota.max_slots == 0 || candidate.ranks <= quota.max_slots;
  if (candidate.ranks > use.num_slots || !fits_quota) return Verdict::kNever;
  auto found = use.projects.find(candidate.project);
  SlotUse::Project project = found == use.projects.end() ? SlotUse::Project() : found->second;
  bool over = (quota.max_running_jobs != 0 && project.num_jobs >= quota.max_running_jobs) ||
              (quota.max_slots != 0 && project.num_slots + candidate.ranks > quota.max_slots);
  if (over) return Verdict::kWaitForQuota;
  return use.num_used + candidate.ranks > use.num_slots ? Verdict::kWaitForSlots : Verdict::kStart;
}

Verdict Queue::next(const Candidate& candidate, const ProjectQuota& quota) {
  Verdict verdict = judge(candidate, use_, quota);
  if (verdict == Verdict::kNever) return verdict;
  const std::string& project = candidate.project;
  bool held_up =
      std::find(projects_held_up_.begin(), projects_held_up_.end(), project) != projects_held_up_.end();
  if (held_up) return Verdict::kWaitForQuota;
  if (held_up_) return Verdict::kWaitForSlots;
  if (verdict == Verdict::kStart) use_.add(project, candidate.ranks);
  if (verdict == Verdict::kStart || candidate.may_be_overtaken) return verdict;
  if (verdict == Verdict::kWaitForQuota) {
    projects_held_up_.push_back(project);
  } else {
    held_up_ = true;
  }
  return verdict;
}

}  // namespace llm_dist::cluster
