#include "src/text/utf8_stream.h"

#include <algorithm>

namespace llm_dist::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct ByteRange {
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  bool contains(unsigned char byte) const { return byte >= low && byte <= high; }
};

// Bytes of the character that `lead` starts; 0 when none can start so.
size_t length_of(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// What may follow `lead`: excludes overlong forms, surrogates and everything above U+10FFFF (table 3-7).
ByteRange second_byte(unsigned char lead) {
  switch (lead) {
    case 0xE0: return {.low = 0xA0};
    case 0xED: return {.high = 0x9F};
    case 0xF0: return {.low = 0x90};
    case 0xF4: return {.high = 0x8F};
    default: return {};
  }
}

}  // namespace

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  for (const char c : bytes) push_byte(static_cast<unsigned char>(c), out);
}

void Utf8Stream::push_byte(unsigned char byte, std::string& out) {
  if (!pending_.empty()) {
    const auto lead = static_cast<unsigned char>(pending_[0]);
    const ByteRange range = pending_.size() == 1 ? second_byte(lead) : ByteRange{};
    if (range.contains(byte)) {
      pending_.push_back(static_cast<char>(byte));
      if (pending_.size() == length_of(lead)) {
        out += pending_;
        pending_.clear();
      }
      return;
    }
    flush(out);
  }
  switch (length_of(byte)) {
    case 0: out += kReplacement; break;
    case 1: out.push_back(static_cast<char>(byte)); break;
    default: pending_.push_back(static_cast<char>(byte)); break;
  }
}

void Utf8Stream::flush(std::string& out) {
  if (!pending_.empty()) out += kReplacement;
  pending_.clear();
}

bool is_valid_utf8(std::string_view text) {
  Utf8Stream stream;
  std::string out;
  out.reserve(text.size());
  stream.push(text, out);
  return stream.empty() && out == text;
}

}  // namespace llm_dist::text
