// Who may ask.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/http/message.h"

namespace llm_dist::http {

class KeyCheck {
 public:
  // None: everybody may.
  explicit KeyCheck(const std::vector<std::string>& keys);
  // No key configured, or the right one sent as "Authorization: Bearer KEY". The time it takes depends on no
  // key's content, nor on its length.
  bool allows(const Request& request) const;
  // Whether a key stands anywhere in `text`, which is then not fit to be shown.
  bool occurs_in(std::string_view text) const;

 private:
  struct Key {
    std::string digest;
    size_t length;
  };
  std::vector<Key> keys_;
};

// Whether only this machine reaches what listens there: "localhost", 127.x.x.x, "::1", "[::1]".
bool is_loopback(std::string host);

}  // namespace llm_dist::http
