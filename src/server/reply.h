// Replies as JSON: whole ones, and the chunks of a stream.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/sched/request.h"
#include "src/server/choice.h"
#include "src/server/request_schema.h"

namespace llm_dist::server {

// What all chunks of a reply share.
struct ReplyHead {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;  // "chatcmpl-…", "cmpl-…"
  int64_t created_unix_s = 0;
  std::string model;
  std::string system_fingerprint;
  bool with_logprobs = false;
  TokenNames token_names = TokenNames::kTexts;
  bool include_usage = false;  // chunks then carry "usage": null
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

struct ChoiceReply {
  int32_t index = 0;
  Delta content;
  sched::FinishReason finish = sched::FinishReason::kNone;  // kNone: null
  bool role = false;                                        // a chunk that opens a chat choice
  // Of a whole reply, by append_prompt_logprob(), shared by the choices of a prompt; null: not asked for.
  const std::string* prompt_logprobs = nullptr;
};

// As vLLM writes it: an object, by the ids of the token itself and of the likeliest ones. `elements`: of a
// JSON array, those of the tokens before.
void append_prompt_logprob(std::string& elements, const TokenLogprob& token);

std::string render_reply(const ReplyHead& head, const std::vector<ChoiceReply>& choices, const Usage& usage);
std::string render_chunk(const ReplyHead& head, const ChoiceReply& choice);
// The chunk without choices that ends a stream with include_usage.
std::string render_usage_chunk(const ReplyHead& head, const Usage& usage);

std::string render_models(const std::vector<std::string>& names,
                          int64_t created_unix_s,
                          int64_t max_model_len);
std::string render_model(const std::string& name, int64_t created_unix_s, int64_t max_model_len);
// `spelling`: of a token; empty where they are not asked for.
std::string render_tokens(const std::vector<int32_t>& ids,
                          int64_t max_model_len,
                          const std::function<std::string(int32_t)>& spelling);
// {"key": "text"}
std::string render_text(const std::string& key, const std::string& text);

}  // namespace llm_dist::server
