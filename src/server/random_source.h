// RandomSource: numbers and names that nobody else has drawn. Not for secrets.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace llm_dist::server {

// Any thread.
class RandomSource {
 public:
  RandomSource();  // from the system's entropy
  uint64_t next();
  // 32 hexadecimal digits.
  std::string name();

 private:
  std::atomic<uint64_t> state_;
};

std::string hex(uint64_t value);  // 16 digits

}  // namespace llm_dist::server
