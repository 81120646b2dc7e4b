#include "comm/tcp/sha256.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

namespace llm_dist::comm {
namespace {

constexpr size_t kBlockBytes = 64;
constexpr size_t kRounds = 64;
constexpr int kPrimeLimit = 312;  // the 64th prime is 311

// The standard defines its constants as the first 32 bits of the fractions of square roots (cube roots) of
// the first primes. Exact: the root of p · 2^(32·degree), by bisection in 128-bit integers.
constexpr uint32_t root_fraction(uint64_t prime, int degree) {
  using Wide = unsigned __int128;
  Wide low = 0;
  Wide high = Wide{1} << 37;
  while (high - low > 1) {
    Wide middle = (low + high) / 2;
    // degree 2: m² ≤ p·2^64. degree 3: m³ ≤ p·2^96, compared as m² ≤ p·2^96 / m.
    bool below = degree == 2 ? middle * middle <= (Wide{prime} << 64)
                             : middle * middle <= (Wide{prime} << 96) / std::max<Wide>(middle, 1);
    (below ? low : high) = middle;
  }
  return static_cast<uint32_t>(low);
}

template <size_t kCount>
constexpr std::array<uint32_t, kCount> root_fractions(int degree) {
  std::array<uint32_t, kCount> fractions{};
  size_t found = 0;
  for (uint64_t n = 2; n < kPrimeLimit && found < kCount; ++n) {
    bool prime = true;
    for (uint64_t d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (prime) fractions[found++] = root_fraction(n, degree);
  }
  return fractions;
}

constexpr auto kInitial = root_fractions<8>(2);
constexpr auto kRoundConstants = root_fractions<kRounds>(3);

uint32_t big_endian(const char* bytes) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | static_cast<unsigned char>(bytes[i]);
  return word;
}

void add_block(std::array<uint32_t, 8>& state, const char* block) {
  std::array<uint32_t, kRounds> w{};
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  for (size_t i = 16; i < kRounds; ++i) {
    uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < kRounds; ++i) {
    uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRoundConstants[i] + w[i];
    uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  std::array<uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state.size(); ++i) state[i] += mixed[i];
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Digest sha256(std::string_view message) {
  std::string padded(message);
  padded += '\x80';
  while (padded.size() % kBlockBytes != kBlockBytes - 8) padded += '\0';
  uint64_t bits = message.size() * 8;
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(bits >> shift);
  std::array<uint32_t, 8> state = kInitial;
  for (size_t at = 0; at < padded.size(); at += kBlockBytes) add_block(state, padded.data() + at);
  Digest digest{};
  for (size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<std::byte>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Digest hmac_sha256(std::span<const std::byte> key, std::string_view message) {
  std::array<std::byte, kBlockBytes> block{};
  if (key.size() > kBlockBytes) {
    Digest shorter = sha256(as_text(key));
    std::copy(shorter.begin(), shorter.end(), block.begin());
  } else {
    std::copy(key.begin(), key.end(), block.begin());
  }
  auto masked = [&](std::byte mask) {
    std::array<std::byte, kBlockBytes> key_block = block;
    for (auto& byte : key_block) byte ^= mask;
    return std::string(as_text(key_block));
  };
  Digest inner = sha256(masked(std::byte{0x36}) + std::string(message));
  return sha256(masked(std::byte{0x5c}) + std::string(as_text(inner)));
}

}  // namespace llm_dist::comm
