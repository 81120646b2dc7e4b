// OnceRecord: a small plain value in shared memory that is set at most once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "src/base/status.h"

namespace llm_dist::comm {

template <typename T>
class OnceRecord {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // True for the one caller whose value it becomes.
  bool try_set(const T& value) {
    uint32_t expected = kEmpty;
    if (!state_.compare_exchange_strong(expected, kWriting, std::memory_order_acq_rel)) return false;
    value_ = value;
    state_.store(kSet, std::memory_order_release);
    return true;
  }
  // Somebody has begun to set it; if that process died at once, get() stays empty for ever.
  bool begun() const { return state_.load(std::memory_order_acquire) != kEmpty; }
  std::optional<T> get() const {
    if (state_.load(std::memory_order_acquire) != kSet) return std::nullopt;
    return value_;
  }

 private:
  static constexpr uint32_t kEmpty = 0;
  static constexpr uint32_t kWriting = 1;
  static constexpr uint32_t kSet = 2;

  std::atomic<uint32_t> state_{kEmpty};
  T value_{};
};

// Text in a fixed place, cut to what fits.
template <size_t kBytes>
struct FixedText {
  char bytes[kBytes] = {};

  void assign(std::string_view text) {
    size_t n = std::min(text.size(), kBytes - 1);
    std::memcpy(bytes, text.data(), n);
    std::memset(bytes + n, 0, kBytes - n);
  }
  std::string_view view() const { return {bytes, ::strnlen(bytes, kBytes)}; }
};

// A Status as plain data.
struct PlainCause {
  int32_t code = 0;
  FixedText<480> text;
};

inline PlainCause to_plain(const Status& status) {
  PlainCause plain{.code = static_cast<int32_t>(status.code())};
  plain.text.assign(status.message());
  return plain;
}
inline Status to_status(const PlainCause& plain) {
  bool known = plain.code > 0 && plain.code <= static_cast<int32_t>(StatusCode::kInternal);
  return Status(known ? static_cast<StatusCode>(plain.code) : StatusCode::kAborted,
                std::string(plain.text.view()));
}

}  // namespace llm_dist::comm
