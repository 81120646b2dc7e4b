#include "src/server/choice.h"

#include <algorithm>

namespace llm_dist::server {
namespace {

// Enough context for tokenizers whose token texts depend on their neighbours.
constexpr size_t kContextTokens = 8;

int64_t count_characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace

TokenLogprob logprob_of(const text::Tokenizer& tokenizer, const TokenRecord& record, int32_t max_top) {
  TokenLogprob logprob;
  logprob.token = record.token;
  logprob.bytes = tokenizer.token_bytes(record.token);
  logprob.logprob = record.logprob;
  const uint32_t num_top = std::min(record.num_top, static_cast<uint32_t>(std::max(0, max_top)));
  logprob.top.reserve(num_top);
  for (uint32_t i = 0; i < num_top; ++i) {
    logprob.top.push_back({.token = record.top_ids[i],
                           .bytes = std::string(tokenizer.token_bytes(record.top_ids[i])),
                           .logprob = record.top_logprobs[i]});
  }
  return logprob;
}

TokenLogprob unknown_logprob(const text::Tokenizer& tokenizer, int32_t token) {
  TokenLogprob logprob;
  logprob.token = token;
  logprob.bytes = tokenizer.token_bytes(token);
  logprob.known = false;
  return logprob;
}

Choice::Choice(const text::Tokenizer& tokenizer,
               const GenerateSpec& spec,
               std::span<const int32_t> prompt,
               std::string echo)
    : tokenizer_(tokenizer),
      detokenizer_(tokenizer, spec.skip_special_tokens),
      matcher_(spec.stop, spec.include_stop),
      echo_(std::move(echo)),
      include_stop_(spec.include_stop),
      num_logprobs_(spec.num_logprobs),
      echoes_logprobs_(spec.echoes_logprobs()),
      scores_end_token_(spec.endpoint == Endpoint::kCompletions),
      echo_only_(spec.max_tokens == 0),
      skip_special_tokens_(spec.skip_special_tokens),
      min_tokens_(spec.min_tokens) {
  detokenizer_.set_context(prompt.last(std::min(prompt.size(), kContextTokens)));
  text_offset_ = count_characters(echo_);
  if (echoes_logprobs_) add_echo_logprob(unknown_logprob(tokenizer_, prompt.front()));
}

void Choice::push_score(const TokenRecord& record) {
  if (echoes_logprobs_) add_echo_logprob(logprob_of(tokenizer_, record, num_logprobs_));
}

void Choice::add_echo_logprob(TokenLogprob logprob) {
  logprob.text_offset = echo_offset_;
  if (!tokenizer_.is_special(logprob.token)) echo_offset_ += count_characters(logprob.bytes);
  echo_logprobs_.push_back(std::move(logprob));
}

Delta Choice::push(const TokenRecord& record) {
  Delta delta{.text = std::exchange(echo_, {}), .logprobs = std::exchange(echo_logprobs_, {})};
  if (echo_only_) {
    finish_ = sched::FinishReason::kLength;
    return delta;
  }
  ++num_tokens_;
  const bool has_text = record.finish != sched::FinishReason::kStop || include_stop_;
  if (num_logprobs_ >= 0 && (has_text || scores_end_token_)) add_logprob(record);
  if (has_text) add_text(detokenizer_.push(record.token), delta);
  if (matcher_.matched()) {
    finish_ = sched::FinishReason::kStop;
  } else if (record.finish != sched::FinishReason::kNone) {
    end(record.finish, delta);
  }
  release_logprobs(finished() && !matcher_.matched(), delta);
  return delta;
}

void Choice::end(sched::FinishReason reason, Delta& delta) {
  finish_ = reason;
  add_text(detokenizer_.flush(), delta);
  if (matcher_.matched()) {
    finish_ = sched::FinishReason::kStop;
    return;
  }
  std::string held_back = matcher_.flush();
  emitted_bytes_ += held_back.size();
  delta.text += held_back;
}

void Choice::add_text(const std::string& text, Delta& delta) {
  if (text.empty()) return;
  if (num_tokens_ < min_tokens_) {  // stop strings do not count yet
    emitted_bytes_ += text.size();
    delta.text += text;
    return;
  }
  text::StopMatcher::Piece piece = matcher_.push(text);
  emitted_bytes_ += piece.text.size();
  delta.text += piece.text;
}

void Choice::add_logprob(const TokenRecord& record) {
  Pending& pending = pending_.emplace_back();
  pending.start_bytes = token_bytes_;
  pending.logprob = logprob_of(tokenizer_, record, num_logprobs_);
  pending.logprob.text_offset = text_offset_;
  if (skip_special_tokens_ && tokenizer_.is_special(record.token)) return;
  token_bytes_ += pending.logprob.bytes.size();
  text_offset_ += count_characters(pending.logprob.bytes);
}

void Choice::release_logprobs(bool all, Delta& delta) {
  while (!pending_.empty() && (all || pending_.front().start_bytes < emitted_bytes_)) {
    delta.logprobs.push_back(std::move(pending_.front().logprob));
    pending_.pop_front();
  }
}

}  // namespace llm_dist::server
