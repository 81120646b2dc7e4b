#include "src/text/detokenizer.h"

#include <algorithm>

namespace llm_dist::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
// Of a prompt; enough for a decoder to place spaces.
constexpr size_t kContextIds = 4;
// A character has at most 4 bytes, so a run of byte tokens longer than this is not going to become one.
constexpr size_t kMaxPendingIds = 8;

}  // namespace

void Detokenizer::set_context(std::span<const int32_t> ids) {
  if (tokenizer_.is_byte_level()) return;
  const auto last = ids.last(std::min(ids.size(), kContextIds));
  window_.assign(last.begin(), last.end());
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

std::string Detokenizer::push_windowed(int32_t id) {
  window_.push_back(id);
  const std::string text = tokenizer_.decode(window_, skip_special_tokens_);
  const bool complete = text.size() > emitted_text_.size() && !text.ends_with(kReplacement);
  if (!complete && window_.size() - num_emitted_ < kMaxPendingIds) return {};
  return take_pending(text);
}

// Emits what `window_text` (decode(window_)) has beyond the emitted text. The ids just emitted become the
// context: they started with a whole character, which "the last four" need not.
std::string Detokenizer::take_pending(const std::string& window_text) {
  std::string fresh =
      window_text.size() > emitted_text_.size() ? window_text.substr(emitted_text_.size()) : std::string();
  window_.erase(window_.begin(), window_.begin() + static_cast<ptrdiff_t>(num_emitted_));
  num_emitted_ = window_.size();
  emitted_text_ = tokenizer_.decode(window_, skip_special_tokens_);
  return fresh;
}

std::string Detokenizer::flush() {
  std::string text;
  if (tokenizer_.is_byte_level()) {
    stream_.flush(text);
  } else if (num_emitted_ < window_.size()) {
    text = take_pending(tokenizer_.decode(window_, skip_special_tokens_));
  }
  return text;
}

}  // namespace llm_dist::text
