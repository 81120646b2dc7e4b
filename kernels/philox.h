// Philox4x32-10, a counter-based random generator (Salmon et al. 2011, "Parallel random numbers: as easy as
// 1, 2, 3"): the same counter and key give the same words on every device, in any order.
#pragma once

#include <cstdint>

namespace llm_dist::kernels {

struct PhiloxCounter {
  uint32_t words[4];
};
struct PhiloxKey {
  uint32_t words[2];
};

constexpr PhiloxCounter philox_round(const PhiloxCounter& c, const PhiloxKey& k) {
  const uint64_t product0 = uint64_t{0xD2511F53u} * c.words[0];
  const uint64_t product1 = uint64_t{0xCD9E8D57u} * c.words[2];
  return {{static_cast<uint32_t>(product1 >> 32) ^ c.words[1] ^ k.words[0],
           static_cast<uint32_t>(product1),
           static_cast<uint32_t>(product0 >> 32) ^ c.words[3] ^ k.words[1],
           static_cast<uint32_t>(product0)}};
}

constexpr PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    counter = philox_round(counter, key);
    key.words[0] += 0x9E3779B9u;  // golden ratio
    key.words[1] += 0xBB67AE85u;  // sqrt(3) − 1
  }
  return counter;
}

// The uniform number in [0, 1) that decides the draw of the token at `position`: 53 bits of Philox keyed by
// the seed, at counter (position, choice, 0, 0).
constexpr double sampling_uniform(uint64_t seed, uint32_t position, uint32_t choice) {
  const PhiloxCounter r = philox4x32_10({{position, choice, 0, 0}},
                                        {{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}});
  const uint64_t bits = (uint64_t{r.words[0]} << 32) | r.words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace llm_dist::kernels
