// HMAC (RFC 2104) with SHA-256: how ranks prove to each other that they belong to one launch without sending
// the secret.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace llm_dist::comm {

using Digest = std::array<std::byte, 32>;

Digest hmac_sha256(std::span<const std::byte> key, std::string_view message);

}  // namespace llm_dist::comm
