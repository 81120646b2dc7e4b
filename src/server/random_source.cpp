#include "src/server/random_source.h"

#include <random>

namespace llm_dist::server {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): one step of its output function.
uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

uint64_t entropy() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace

RandomSource::RandomSource() : state_(entropy()) {}

uint64_t RandomSource::next() { return mix(state_.fetch_add(0x9e3779b97f4a7c15ull)); }

std::string RandomSource::name() { return hex(next()) + hex(next()); }

std::string hex(uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(value >> shift) & 15];
  return text;
}

}  // namespace llm_dist::server
