// FNV-1a of 64 bits (Fowler, Noll, Vo): a name in one number, alike on every host and in every build. No
// defence against who looks for two names with one hash.
#pragma once

#include <cstdint>
#include <string_view>

namespace llm_dist {

constexpr uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace llm_dist
