// Choice: one continuation's way from token ids to text that a client may see.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "src/server/generate_spec.h"
#include "src/server/token_record.h"
#include "src/text/detokenizer.h"
#include "src/text/stop_matcher.h"

namespace llm_dist::server {

struct TopLogprob {
  int32_t token = -1;
  std::string bytes;
  float logprob = 0.0f;
};

struct TokenLogprob {
  int32_t token = -1;
  std::string bytes;
  bool known = true;  // false: a prompt's first token, of which the model says nothing
  float logprob = 0.0f;
  std::vector<TopLogprob> top;  // likeliest first
  int64_t text_offset = 0;      // characters before it, from the start of the choice's text
};

// `max_top`: of the record's likeliest tokens.
TokenLogprob logprob_of(const text::Tokenizer& tokenizer, const TokenRecord& record, int32_t max_top);
// Of a prompt's first token.
TokenLogprob unknown_logprob(const text::Tokenizer& tokenizer, int32_t token);

// What one token added for the client; often nothing.
struct Delta {
  std::string text;
  std::vector<TokenLogprob> logprobs;
  bool empty() const { return text.empty() && logprobs.empty(); }
};

class Choice {
 public:
  // `tokenizer` outlives it. `echo`: text that comes first. `prompt`: not empty.
  Choice(const text::Tokenizer& tokenizer,
         const GenerateSpec& spec,
         std::span<const int32_t> prompt,
         std::string echo);

  // What the model says of one prompt token, in order of position, before the first push().
  void push_score(const TokenRecord& record);
  // One token (with its end, perhaps). May finish the choice by a stop string before the engine does.
  Delta push(const TokenRecord& record);

  bool finished() const { return finish_ != sched::FinishReason::kNone; }
  sched::FinishReason finish() const { return finish_; }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  void add_text(const std::string& text, Delta& delta);
  void add_logprob(const TokenRecord& record);
  void add_echo_logprob(TokenLogprob logprob);
  void end(sched::FinishReason reason, Delta& delta);
  void release_logprobs(bool all, Delta& delta);

  const text::Tokenizer& tokenizer_;
  text::Detokenizer detokenizer_;
  text::StopMatcher matcher_;
  std::string echo_;
  std::vector<TokenLogprob> echo_logprobs_;
  int64_t echo_offset_ = 0;  // characters before the next of them
  bool include_stop_;
  int32_t num_logprobs_;  // −1: none
  bool echoes_logprobs_;
  bool scores_end_token_;  // who scores a text counts on an entry for each token
  bool echo_only_;
  bool skip_special_tokens_;
  int64_t min_tokens_;
  int64_t num_tokens_ = 0;
  sched::FinishReason finish_ = sched::FinishReason::kNone;

  // A log-probability goes out with the first text of its token, so that what a stop string swallows has
  // none.
  struct Pending {
    size_t start_bytes;
    TokenLogprob logprob;
  };
  std::deque<Pending> pending_;
  size_t token_bytes_ = 0;    // of all tokens so far
  size_t emitted_bytes_ = 0;  // that the client has of them
  int64_t text_offset_ = 0;   // characters before the next token
};

}  // namespace llm_dist::server
