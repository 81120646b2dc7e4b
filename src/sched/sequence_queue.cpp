#include "src/sched/sequence_queue.h"

#include <algorithm>

#include "src/base/check.h"

namespace llm_dist::sched {
namespace {

auto position(auto& members, const Sequence& sequence) {
  return std::lower_bound(
      members.begin(), members.end(), &sequence, [](const Sequence* a, const Sequence* b) {
        return goes_before(*a, *b);
      });
}

}  // namespace

void RunningSet::insert(Sequence& sequence) { members_.insert(position(members_, sequence), &sequence); }

void RunningSet::erase(const Sequence& sequence) {
  const auto at = position(members_, sequence);
  CHECK(at != members_.end() && *at == &sequence, "sequence {} does not run", sequence.id);
  members_.erase(at);
}

}  // namespace llm_dist::sched
