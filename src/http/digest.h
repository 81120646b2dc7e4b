// Digests and random tokens for what guards a request.
#pragma once

#include <string>
#include <string_view>

namespace llm_dist::http {

// FIPS 180-4, 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

// From the operating system's generator; two digits a byte.
std::string random_hex(int num_bytes);

}  // namespace llm_dist::http
