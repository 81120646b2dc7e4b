// TokenMask: one bit a vocabulary entry, 1 = allowed; bit i of word i / 32. A view; the grammar that fills it
// owns it.
#pragma once

#include <cstdint>
#include <span>

namespace llm_dist {

struct TokenMask {
  std::span<const uint32_t> words;
  bool allows(int32_t token) const {
    return (words[static_cast<size_t>(token) / 32] >> (static_cast<uint32_t>(token) % 32) & 1u) != 0;
  }
};

}  // namespace llm_dist
