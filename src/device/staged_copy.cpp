#include "src/device/staged_copy.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "src/base/bounded_queue.h"

namespace llm_dist::device {
namespace {

struct Slot {
  Buffer memory;
  std::unique_ptr<Event> copied;
  size_t lot = 0;  // this one and the next: of what fills it now
  Status status;
};

class Ring {
 public:
  Ring(const StagedCopy& work, Backend& backend, Stream& stream)
      : work_(work),
        backend_(backend),
        stream_(stream),
        threads_(std::min(static_cast<size_t>(std::max(1, work.threads)), work.lots)),
        most_slots_(std::min(2 * threads_, work.lots)),
        free_(most_slots_),
        filled_(most_slots_) {}

  Status run() {
    Status outcome;
    {
      std::vector<std::jthread> fillers;
      fillers.reserve(threads_);
      for (size_t thread = 0; thread < threads_; ++thread)
        fillers.emplace_back([this, thread] { fill_lots(thread); });
      outcome = copy_lots();
      begin_no_more();
      free_.close();
    }
    // The ring's memory goes, also behind an error: no copy may still read it.
    Status copied = stream_.synchronize(deadline());
    return outcome.ok() ? copied : outcome;
  }

 private:
  Deadline deadline() const { return Deadline::after_seconds(work_.deadline_seconds); }
  void begin_no_more() { next_lot_ = work_.lots; }

  // Takes memory before a lot: one that is taken is filled at once, so that lots begin in order.
  void fill_lots(size_t thread) {
    while (auto slot = free_.pop(deadline())) {
      const size_t lot = next_lot_++;
      if (lot >= work_.lots) return;
      (*slot)->lot = lot;
      (*slot)->status = work_.fill(thread, lot, (*slot)->memory.data());
      if (!(*slot)->status.ok()) begin_no_more();
      filled_.push(*slot, deadline());
    }
  }

  Status copy_lots() {
    for (size_t copied = 0; copied < work_.lots; ++copied) {
      ASSIGN_OR_RETURN(Slot * slot, next_filled());
      RETURN_IF_ERROR(slot->status);
      work_.copy(slot->lot, slot->memory.data());
      stream_.record(*slot->copied);
      copying_.push_back(slot);
    }
    return ok_status();
  }

  // Gives memory back whose copies have ended. Waits for that only where copies hold more than half of a
  // ring that cannot grow: each thread keeps memory to fill.
  Status free_copied() {
    while (!copying_.empty()) {
      const bool too_many = slots_.size() == most_slots_ && copying_.size() > most_slots_ - threads_;
      if (!too_many && !copying_.front()->copied->complete()) break;
      RETURN_IF_ERROR(copying_.front()->copied->wait(deadline()));
      free_.push(copying_.front(), deadline());
      copying_.pop_front();
    }
    return ok_status();
  }

  // Pinning memory takes the time of many copies: the ring grows while there is nothing to copy, and threads
  // fill its first lots meanwhile. With its last memory it cannot grow any more.
  Result<Slot*> next_filled() {
    RETURN_IF_ERROR(free_copied());
    while (slots_.size() < most_slots_) {
      if (auto slot = filled_.try_pop()) return *slot;
      RETURN_IF_ERROR(add_slot());
      RETURN_IF_ERROR(free_copied());
    }
    auto slot = filled_.pop(deadline());
    if (!slot) return deadline_exceeded(format("no data came within {} s", work_.deadline_seconds));
    return *slot;
  }

  Status add_slot() {
    auto slot = std::make_unique<Slot>();
    ASSIGN_OR_RETURN(slot->memory, backend_.allocate(work_.lot_bytes, MemoryKind::kPinned));
    slot->copied = backend_.make_event();
    free_.push(slot.get(), deadline());
    slots_.push_back(std::move(slot));
    return ok_status();
  }

  const StagedCopy& work_;
  Backend& backend_;
  Stream& stream_;
  size_t threads_;
  size_t most_slots_;
  std::vector<std::unique_ptr<Slot>> slots_;
  BoundedQueue<Slot*> free_;
  BoundedQueue<Slot*> filled_;
  std::deque<Slot*> copying_;  // in order of their copies
  std::atomic<size_t> next_lot_ = 0;
};

}  // namespace

Status run_staged_copy(const StagedCopy& work, Backend& backend, Stream& stream) {
  if (work.lots == 0) return ok_status();
  return Ring(work, backend, stream).run();
}

}  // namespace llm_dist::device
