// GenerateSpec: what one chat or completion request asks for, checked field by field, before any text is
// tokenized.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "src/base/logit_rules.h"
#include "src/server/request_schema.h"

namespace llm_dist::server {

using PromptInput = std::variant<std::string, std::vector<int32_t>>;

// A conversation for the model's chat template.
struct ChatInput {
  std::string messages_json{};  // array of {"role", "content", …}, contents as plain strings
  std::string kwargs_json{};    // empty: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

// What tokens are called among log-probabilities: by their texts, which are parts of characters at times and
// need not be theirs alone, or "token_id:7".
enum class TokenNames : uint8_t { kTexts, kIds };

struct GenerateSpec {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;
  ChatInput chat;                    // of kChat
  std::vector<PromptInput> prompts;  // of kCompletions

  // Absent: the model's default, else OpenAI's.
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int64_t> top_k;
  std::optional<double> repetition_penalty;
  std::optional<uint64_t> seed;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  int64_t min_tokens = 0;
  int64_t no_repeat_ngram_size = 0;  // 0: off
  int64_t n = 1;
  int64_t best_of = 0;  // when more than n: as many are generated, and the n likeliest are replied
  int64_t priority = 0;

  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  std::vector<TokenBias> logit_bias;
  std::vector<int32_t> allowed_token_ids;  // empty: all
  std::vector<std::string> bad_words;
  bool include_stop = false;
  bool skip_special_tokens = true;
  bool ignore_eos = false;
  bool echo = false;
  int32_t num_logprobs = -1;         // −1: none; 0: of the token itself only; k: of the k likeliest too
  int32_t num_prompt_logprobs = -1;  // likewise
  TokenNames token_names = TokenNames::kTexts;

  bool stream = false;
  bool include_usage = false;

  // Continuations of each prompt.
  int64_t num_sequences() const { return std::max(n, best_of); }
  bool echoes_logprobs() const { return echo && num_logprobs >= 0; }
};

// /tokenize: a text, or a conversation.
struct TokenizeSpec {
  std::string model;
  std::optional<std::string> prompt;
  std::optional<ChatInput> chat;
  std::optional<bool> add_special_tokens;  // absent: yes for a text, no for a conversation
  bool return_token_strs = false;
};

// /detokenize
struct DetokenizeSpec {
  std::string model;
  std::vector<int32_t> tokens;
};

}  // namespace llm_dist::server
