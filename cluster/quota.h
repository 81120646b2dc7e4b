// What a project may have, and which of those that wait may start. Knows no store and no clock.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cluster/slots.h"

namespace llm_dist::cluster {

// 0: no limit.
struct ProjectQuota {
  int max_running_jobs = 0;  // that hold slots
  int max_queued_jobs = 0;
  int max_slots = 0;
};

// A job that waits for slots.
struct Candidate {
  std::string project;
  int ranks = 1;
  bool may_be_overtaken = false;  // a large job would otherwise wait for ever; see Job::replica_of
};

// What holds slots now, of the machine and by project.
struct SlotUse {
  struct Project {
    int num_jobs = 0;
    int num_slots = 0;
  };
  Slots slots;  // of the machine
  std::map<std::string, Project> projects{};

  void add(const std::string& project, std::span<const int> taken);
};

enum class Verdict : uint8_t {
  kStart,
  kWaitForSlots,
  kWaitForQuota,
  kNever,  // it needs more slots than there are, or than its project may have
};
struct Turn {
  Verdict verdict = Verdict::kNever;
  std::vector<int> slots{};  // of one that starts
};
Turn judge(const Candidate& candidate, const SlotUse& use, const ProjectQuota& quota);

// Goes through candidates in the order of their turn. Who waits for slots holds up everybody behind, unless
// it may be overtaken; who waits for its project's quota holds up its own project only.
class Queue {
 public:
  explicit Queue(SlotUse use) : use_(std::move(use)) {}
  // What a candidate that starts takes is taken.
  Turn next(const Candidate& candidate, const ProjectQuota& quota);
  bool is_held_up() const { return held_up_; }
  const std::vector<std::string>& projects_held_up() const { return projects_held_up_; }

 private:
  SlotUse use_;
  bool held_up_ = false;
  std::vector<std::string> projects_held_up_;
};

}  // namespace llm_dist::cluster
