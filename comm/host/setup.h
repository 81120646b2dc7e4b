// What the collective setup of channel and liveness share: secrets, and exchanges that fail everywhere or
// nowhere.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "comm/host/host_world.h"
#include "src/base/status.h"

namespace llm_dist::comm {

using Secret = std::array<std::byte, 32>;

Result<Secret> draw_secret();
// In time that does not depend on where they differ.
bool secrets_equal(const Secret& a, const Secret& b);

Status check_world(const HostWorld& world);

// All-gathers `mine`. When any rank comes with an error, every rank returns the lowest such rank's: a rank
// that cannot go on still takes part, so that nobody waits for it.
Result<std::vector<std::string>> gather_or_fail(const HostWorld& world, const Result<std::string>& mine);
Status agree(const HostWorld& world, const Status& mine);

// Plain data as bytes for an exchange, and back.
template <typename T>
std::string to_bytes(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename T>
bool from_bytes(std::string_view bytes, T* value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes.size() != sizeof(*value)) return false;
  bytes.copy(reinterpret_cast<char*>(value), sizeof(*value));
  return true;
}

}  // namespace llm_dist::comm
