#include "src/http/digest.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <vector>

#include "src/base/check.h"

namespace llm_dist::http {
namespace {

std::string hex_of(const unsigned char* bytes, size_t size) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * size);
  for (size_t i = 0; i < size; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  CHECK_EQ(EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr), 1);
  return hex_of(digest, size);
}

std::string random_hex(int num_bytes) {
  std::vector<unsigned char> bytes(num_bytes);
  CHECK_EQ(RAND_bytes(bytes.data(), num_bytes), 1);
  return hex_of(bytes.data(), bytes.size());
}

}  // namespace llm_dist::http
