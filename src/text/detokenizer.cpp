#include "src/text/detokenizer.h"

#include <algorithm>

namespace llm_dist::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
// Of a prompt; enough for a decoder to place spaces.
constexpr size_t kContextIds = 4;
// A character has at most 4 bytes, so a run of parts longer than this is not going to become one.
constexpr size_t kMaxPendingIds = 8;

// Of a character that byte tokens make.
bool is_part(std::string_view token_bytes) {
  return token_bytes.size() == 1 && static_cast<unsigned char>(token_bytes[0]) >= 0x80;
}

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

void Detokenizer::set_context(std::span<const int32_t> ids) {
  if (tokenizer_.is_byte_level()) return;
  const auto last = ids.last(std::min(ids.size(), kContextIds));
  window_.clear();
  for (const int32_t id : last) add_to_window(id);
  end_character();
  num_emitted_ = window_.size();
  emitted_text_ = tokenizer_.decode(window_, skip_special_tokens_);
}

std::string Detokenizer::push(int32_t id) {
  if (skip_special_tokens_ && tokenizer_.is_special(id)) return {};
  if (!tokenizer_.is_byte_level()) return push_windowed(id);
  std::string text;
  stream_.push(tokenizer_.token_bytes(id), text);
  return text;
}

// Byte tokens come in as whole characters, a broken one as the bytes of U+FFFD: in a run of them that ends in
// half a character, decoding breaks all, also those that were emitted.
void Detokenizer::add_to_window(int32_t id) {
  const std::string_view bytes = tokenizer_.token_bytes(id);
  if (bytes.empty()) return;
  if (is_part(bytes) && !tokenizer_.byte_tokens().empty()) {
    std::string characters;
    stream_.push(bytes, characters);
    add_byte_tokens(characters);
    return;
  }
  end_character();
  window_.push_back(id);
}

void Detokenizer::end_character() {
  std::string replacement;
  stream_.flush(replacement);
  add_byte_tokens(replacement);
}

void Detokenizer::add_byte_tokens(std::string_view characters) {
  for (const char c : characters) {
    window_.push_back(tokenizer_.byte_tokens()[static_cast<unsigned char>(c) - 0x80]);
  }
}

std::string Detokenizer::push_windowed(int32_t id) {
  const size_t size_before = window_.size();
  add_to_window(id);
  if (window_.size() == size_before) return {};
  const std::string text = tokenizer_.decode(window_, skip_special_tokens_);
  const bool whole = !tokenizer_.byte_tokens().empty() || !text.ends_with(kReplacement);
  const bool complete = whole && text.size() > emitted_text_.size();
  if (!complete && window_.size() - num_emitted_ < kMaxPendingIds) return {};
  return take_pending(text);
}

// Emits what `window_text` (decode(window_)) has beyond the emitted text. The ids just emitted become the
// context: they started with a whole character, which "the last four" need not.
std::string Detokenizer::take_pending(const std::string& window_text) {
  size_t start = std::min(emitted_text_.size(), window_text.size());
  // Without byte tokens in the window, what was emitted as broken may have become a longer character.
  while (start < window_text.size() && continues_character(window_text[start])) ++start;
  std::string fresh = window_text.substr(start);
  window_.erase(window_.begin(), window_.begin() + static_cast<ptrdiff_t>(num_emitted_));
  num_emitted_ = window_.size();
  emitted_text_ = tokenizer_.decode(window_, skip_special_tokens_);
  return fresh;
}

std::string Detokenizer::flush() {
  std::string text;
  if (tokenizer_.is_byte_level()) {
    stream_.flush(text);
    return text;
  }
  end_character();
  if (num_emitted_ < window_.size()) text = take_pending(tokenizer_.decode(window_, skip_special_tokens_));
  return text;
}

}  // namespace llm_dist::text
