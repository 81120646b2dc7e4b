// Utf8Stream: bytes in, whole characters out. The one place that knows what a broken character becomes.
#pragma once

#include <string>
#include <string_view>

namespace llm_dist::text {

// Appends only whole characters; a character whose bytes have not all come yet is kept back (at most 3
// bytes). Bytes that cannot become a character turn into U+FFFD, one for each maximal subpart (Unicode 15,
// section 3.9, as Rust's from_utf8_lossy and browsers do).
class Utf8Stream {
 public:
  void push(std::string_view bytes, std::string& out);
  // What is kept back will never be whole: one U+FFFD for it.
  void flush(std::string& out);
  bool empty() const { return pending_.empty(); }

 private:
  void push_byte(unsigned char byte, std::string& out);

  std::string pending_;  // a proper prefix of one character
};

bool is_valid_utf8(std::string_view text);

}  // namespace llm_dist::text
