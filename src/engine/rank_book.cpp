#include "src/engine/rank_book.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "comm/collective_times.h"

namespace llm_dist::engine {
namespace {

constexpr size_t kRememberedSteps = 4096;

// Transfers between stages run beside the steps, not in them.
bool inside_steps(size_t collective) {
  auto kind = static_cast<comm::Collective>(collective);
  return kind != comm::Collective::kSend && kind != comm::Collective::kRecv;
}

double seconds_in_steps(const RankMeters& meters) {
  double seconds = 0;
  for (size_t i = 0; i < kNumCollectives; ++i)
    if (inside_steps(i)) seconds += meters.collectives[i].seconds;
  return seconds;
}

}  // namespace

static_assert(kNumCollectives == comm::kNumCollectives);

RankBook::RankBook(int world_size)
    : latest_(static_cast<size_t>(world_size)),
      windows_(static_cast<size_t>(world_size)),
      active_seconds_(kRememberedSteps, 0.0) {}

void RankBook::note(int rank, const RankMeters& meters) {
  auto index = static_cast<size_t>(rank);
  const RankMeters before = std::exchange(latest_[index], meters);
  uint64_t measured = meters.step_seconds.count - before.step_seconds.count;
  if (measured == 0 || meters.through_step <= before.through_step) return;
  // Where not every step is measured, the others are taken to be alike.
  auto steps = static_cast<double>(meters.through_step - before.through_step);
  double mean =
      (meters.step_seconds.sum_seconds - before.step_seconds.sum_seconds) / static_cast<double>(measured);
  double in_collectives = (seconds_in_steps(meters) - seconds_in_steps(before)) / steps;
  Window& window = windows_[index];
  window.known = true;
  window.own_seconds = std::max(0.0, mean - in_collectives);
  double active = active_between(before.through_step, meters.through_step);
  if (active > 0) window.idle_fraction = std::clamp(1 - mean * steps / active, 0.0, 1.0);
}

void RankBook::note_active(uint64_t step, double active_seconds) {
  active_seconds_[step % kRememberedSteps] = active_seconds;
  last_collected_ = step;
}

// A report may be ahead of the steps that rank 0 has collected.
double RankBook::active_between(uint64_t after, uint64_t through) const {
  through = std::min(through, last_collected_);
  if (after >= through || last_collected_ - after >= kRememberedSteps) return 0;
  double before = after == 0 ? 0 : active_seconds_[after % kRememberedSteps];
  return active_seconds_[through % kRememberedSteps] - before;
}

double RankBook::step_skew_seconds() const {
  double least = std::numeric_limits<double>::max();
  double most = 0;
  for (const Window& window : windows_) {
    if (!window.known) return 0;
    least = std::min(least, window.own_seconds);
    most = std::max(most, window.own_seconds);
  }
  return most - least;
}

double RankBook::bubble_fraction() const {
  double sum = 0;
  for (const Window& window : windows_) sum += window.idle_fraction;
  return sum / static_cast<double>(windows_.size());
}

}  // namespace llm_dist::engine
