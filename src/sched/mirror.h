// What every rank knows of the sequences that hold a slot; plans bring it up to date. Rank 0's scheduler
// holds one too and publishes its checksum, so that a rank whose state has drifted notices at the first plan.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/sched/step_plan.h"

namespace llm_dist::sched {

class Mirror {
 public:
  struct Slot {
    bool active = false;
    int32_t prompt_len = 0;
    int32_t num_tokens_known = 0;  // tokens that stand in the history once the applied plans have run
    int32_t num_computed = 0;      // tokens whose K and V stand in the cache once the applied plans have run
    int32_t num_blocks = 0;
    SlotStart params;                    // as the sequence took the slot
    std::vector<int32_t> end_token_ids;  // [params.num_end_tokens]
    std::vector<int32_t> rule_words;     // [params.rules.num_words]
  };

  Mirror(int32_t num_slots,
         int32_t max_blocks_per_slot,
         int32_t block_size,
         int32_t num_blocks = std::numeric_limits<int32_t>::max());

  // Applies the plan. data_loss when the plan cannot follow what was applied before (a step left out, a slot
  // in use started, a run that leaves a gap, a block out of range), or when the checksums differ; the mirror
  // is of no use after that. A shutdown plan changes nothing.
  Status apply(const StepPlan& plan);
  // The same without comparing checksums: rank 0 learns the checksum to publish from it.
  Status advance(const StepPlan& plan);

  uint64_t checksum() const { return checksum_; }
  uint64_t step() const { return step_; }  // the last plan applied; 0 before the first
  int32_t num_slots() const { return static_cast<int32_t>(slots_.size()); }
  int32_t max_blocks_per_slot() const { return max_blocks_per_slot_; }
  int32_t block_size() const { return block_size_; }
  const Slot& slot(int32_t index) const;
  std::span<const int32_t> blocks(int32_t slot) const;  // [slot(i).num_blocks], in order of position
  // All tables, [num_slots, max_blocks_per_slot]; entries from a slot's num_blocks on mean nothing.
  std::span<const int32_t> block_tables() const { return block_tables_; }

 private:
  Status end(int32_t slot);
  Status start(const SlotStart& start,
               std::span<const int32_t> tokens,
               std::span<const int32_t> end_tokens,
               std::span<const int32_t> rule_words);
  Status run(const SlotRun& run, uint64_t step, std::span<const int32_t> blocks);
  Status check_run(const SlotRun& run, uint64_t step) const;
  bool in_range(int32_t slot) const { return slot >= 0 && slot < num_slots(); }
  void mix(uint64_t value);

  int32_t max_blocks_per_slot_;
  int32_t block_size_;
  int32_t num_blocks_;
  uint64_t step_ = 0;
  uint64_t checksum_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> last_run_;     // [num_slots]: the step that last ran it; a slot runs once a step
  std::vector<int32_t> block_tables_;  // [num_slots, max_blocks_per_slot]
};

}  // namespace llm_dist::sched
