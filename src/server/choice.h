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

struct TokenLogprob {
  std::string bytes;
  float logprob = 0.0f;
  std::vector<std::pair<std::string, float>> top;  // bytes and log-probability, likeliest first
  int64_t text_offset = 0;  // characters before it, from the start of the choice's text
};

// What one token added for the client; often nothing.
struct Delta {
  std::string text;
  std::vector<TokenLogprob> logprobs;
  bool empty() const { return text.empty() && logprobs.empty(); }
};

class Choice {
 public:
  // `tokenizer` outlives it. `echo`: text that comes first.
  Choice(const text::Tokenizer& tokenizer,
         const GenerateSpec& spec,
         std::span<const int32_t> prompt,
         std::string echo);

  // One token (with its end, perhaps). May finish the choice by a stop string before the engine does.
  Delta push(const TokenRecord& record);

  bool finished() const { return finish_ != sched::FinishReason::kNone; }
  sched::FinishReason finish() const { return finish_; }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  void add_text(const std::string& text, Delta& delta);
  void add_logprob(const TokenRecord& record);
  void end(sched::FinishReason reason, Delta& delta);
  void release_logprobs(bool all, Delta& delta);

  const text::Tokenizer& tokenizer_;
  text::Detokenizer detokenizer_;
  text::StopMatcher matcher_;
  std::string echo_;
  bool include_stop_;
  bool wants_logprobs_;
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
