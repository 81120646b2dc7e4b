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
  // Blocks of a cluster that are at the same columns of neighbouring strips and bring each other their share
  // of x: 1, or, of wide strips and for more than 64 rows of x alone, 2 or, not in parts, 4.
  int sharing = 1;
  int parts = 1;

  // A number that stands for it, for files.
  constexpr uint64_t code() const {
    return static_cast<uint64_t>(form) | uint64_t{wide} << 2 | static_cast<uint64_t>(sharing) << 4 |
           static_cast<uint64_t>(parts) << 8;
  }
  static constexpr StreamedDivision of_code(uint64_t code) {
    return {.form = static_cast<Form>(code & 3),
            .wide = (code & 4) != 0,
            .sharing = static_cast<int>(code >> 4 & 0xf),
            .parts = static_cast<int>(code >> 8 & 0xff)};
  }
  bool operator==(const StreamedDivision&) const = default;
};

}  // namespace llm_dist::kernels
