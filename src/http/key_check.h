// Who may ask.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
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

// KEY of "Authorization: Bearer KEY".
std::optional<std::string_view> bearer_key(const Request& request);

struct KeyLine {
  int number = 0;  // in its file, from 1
  std::string text;
};
// The lines of a file of keys without the blanks around them; blank lines and lines that start with '#' are
// skipped. not_found: it cannot be read; invalid_argument: it has no line.
Result<std::vector<KeyLine>> read_key_lines(const std::string& path);

// Whether a header can carry the key: printable ASCII without blanks.
bool can_be_sent(std::string_view key);

// Whether only this machine reaches what listens there: "localhost", 127.x.x.x, "::1", "[::1]". Other
// names are nothing to go by: whoever owns one says where it leads.
bool is_loopback(std::string host);

}  // namespace llm_dist::http
