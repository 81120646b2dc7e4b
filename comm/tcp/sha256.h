// SHA-256 (FIPS 180-4) and HMAC (RFC 2104): how ranks prove to each other that they belong to one launch
// without sending the secret. For a few hundred bytes at start, so it is plain rather than fast.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace llm_dist::comm {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::string_view message);
Digest hmac_sha256(std::span<const std::byte> key, std::string_view message);

}  // namespace llm_dist::comm
