// The board of one node in shared memory: each rank's beats, phase and state, and the verdict that all of
// them act on.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include "comm/host/once_record.h"

namespace llm_dist::comm {

using PhaseText = FixedText<32>;

// Why a rank failed: in words, and the signal, if somebody sent it one.
struct FailureCause {
  int32_t signal = 0;
  FixedText<240> text;
};

enum class RankState : uint32_t { kRunning, kLeft, kGone };  // kGone: ended its watch without a goodbye

// Which rank failed, who says so to the world, and why. One a node, the first; it travels to other nodes.
struct Verdict {
  int32_t failed = -1;
  int32_t reporter = -1;
  PhaseText phase;
  FailureCause cause;
};

// Written by its rank, read by the others of the node. Zeroed memory is a valid initial state.
class alignas(64) BoardSlot {
 public:
  void beat() { beats_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }

  void set_state(RankState state) { state_.store(static_cast<uint32_t>(state), std::memory_order_release); }
  RankState state() const { return static_cast<RankState>(state_.load(std::memory_order_acquire)); }

  // One writer at a time. A reader may see the mix of two phases for an instant, never more than its bytes.
  void set_phase(const PhaseText& phase) {
    std::array<uint64_t, kWords> words;
    std::memcpy(words.data(), phase.bytes, sizeof(phase.bytes));
    for (size_t i = 0; i < kWords; ++i) phase_[i].store(words[i], std::memory_order_relaxed);
  }
  PhaseText phase() const {
    std::array<uint64_t, kWords> words;
    for (size_t i = 0; i < kWords; ++i) words[i] = phase_[i].load(std::memory_order_relaxed);
    PhaseText phase;
    std::memcpy(phase.bytes, words.data(), sizeof(phase.bytes));
    phase.bytes[sizeof(phase.bytes) - 1] = 0;
    return phase;
  }

  OnceRecord<FailureCause>& announcement() { return announcement_; }

 private:
  static constexpr size_t kWords = sizeof(PhaseText) / sizeof(uint64_t);

  std::atomic<uint64_t> beats_{0};
  std::atomic<uint32_t> state_{0};
  std::array<std::atomic<uint64_t>, kWords> phase_{};
  OnceRecord<FailureCause> announcement_;
};

// A view of the board.
class Board {
 public:
  Board() = default;
  explicit Board(std::byte* memory) : memory_(memory) {}
  static size_t memory_bytes(size_t ranks) { return kVerdictBytes + ranks * sizeof(BoardSlot); }
  // Before anybody attaches.
  static void format(std::byte* memory, size_t ranks) {
    new (memory) OnceRecord<Verdict>;
    for (size_t i = 0; i < ranks; ++i) new (memory + kVerdictBytes + i * sizeof(BoardSlot)) BoardSlot;
  }

  OnceRecord<Verdict>& verdict() { return *std::launder(reinterpret_cast<OnceRecord<Verdict>*>(memory_)); }
  BoardSlot& slot(size_t index) {
    return *std::launder(reinterpret_cast<BoardSlot*>(memory_ + kVerdictBytes + index * sizeof(BoardSlot)));
  }

 private:
  static constexpr size_t kVerdictBytes = (sizeof(OnceRecord<Verdict>) + 63) / 64 * 64;

  std::byte* memory_ = nullptr;
};

}  // namespace llm_dist::comm
