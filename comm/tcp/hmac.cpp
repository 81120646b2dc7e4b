#include "comm/tcp/hmac.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "src/base/check.h"

namespace llm_dist::comm {

Digest hmac_sha256(std::span<const std::byte> key, std::string_view message) {
  Digest digest{};
  unsigned int size = 0;
  const unsigned char* made = HMAC(EVP_sha256(),
                                   key.data(),
                                   static_cast<int>(key.size()),
                                   reinterpret_cast<const unsigned char*>(message.data()),
                                   message.size(),
                                   reinterpret_cast<unsigned char*>(digest.data()),
                                   &size);
  CHECK(made != nullptr && size == digest.size());
  return digest;
}

}  // namespace llm_dist::comm
