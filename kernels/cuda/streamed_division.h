// How the work of a product of few rows (streamed_linear.h) is divided between blocks.
#pragma once

#include <cstdint>

namespace llm_dist::kernels {

// W lies in strips, side by side; a strip's columns lie in steps, as many columns as a block has room for in
// one of its stages.
struct StreamedDivision {
  enum class Form : uint8_t {
    kParts,  // each strip's columns in `parts`, a block each; the blocks of a strip are a cluster
    kEven,   // the columns of all strips in ranges of the same length, as many as blocks run at the same time
    kWhole,  // ranges of so many whole strips that all their blocks run at the same time
  };
  static constexpr int kMostParts = 8;  // blocks of a cluster that every device takes

  Form form = Form::kParts;
  // Strips of 128 rows of W, not 64: x comes from L2 half as often. Always for more than 64 rows of x, except
  // that parts may be narrow; never for fewer in parts.
  bool wide = false;
  // Of wide strips, for more than 64 rows of x alone: two blocks at the same columns of neighbouring strips,
  // in a cluster, bring each other half of x.
  bool pairs = false;
  int parts = 1;

  // A number that stands for it, for files.
  constexpr uint64_t code() const {
    return static_cast<uint64_t>(form) | uint64_t{wide} << 2 | uint64_t{pairs} << 3 |
           static_cast<uint64_t>(parts) << 4;
  }
  static constexpr StreamedDivision of_code(uint64_t code) {
    return {.form = static_cast<Form>(code & 3),
            .wide = (code & 4) != 0,
            .pairs = (code & 8) != 0,
            .parts = static_cast<int>(code >> 4 & 0xff)};
  }
  bool operator==(const StreamedDivision&) const = default;
};

}  // namespace llm_dist::kernels
