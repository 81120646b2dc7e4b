// From a spec to what the engine takes: the template rendered, prompts tokenized, defaults filled in, lengths
// checked. Runs on the text threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/sched/request.h"
#include "src/server/api_error.h"
#include "src/server/generate_spec.h"
#include "src/server/server_options.h"
#include "src/text/chat_template.h"
#include "src/text/tokenizer.h"

namespace llm_dist::server {

struct ServedModel {
  const text::Tokenizer* tokenizer = nullptr;
  const text::ChatTemplate* chat_template = nullptr;  // null: none
  ModelInfo info;
};

struct PreparedPrompt {
  std::vector<int32_t> ids;
  std::string echo;  // what each choice's text begins with; empty unless asked for
  int32_t max_tokens = 0;
};

struct PreparedRequest {
  GenerateSpec spec;
  std::vector<PreparedPrompt> prompts;
  sched::SamplingParams sampling;  // of every choice, but for `choice` and `max_tokens`
};

// model_not_found unless `name` is one of the served names.
std::optional<ApiError> check_model(const ServedModel& model, const std::string& name);

// Why a prompt of `num_prompt` tokens is refused: it does not fit into `limit`, or not with the `max_tokens`
// asked for.
std::string beyond_context(int64_t limit, int64_t num_prompt, std::optional<int64_t> max_tokens);

// The whole way of a chat or completion request. `random_seed` is used when the request names none.
std::optional<ApiError> prepare(const ServedModel& model,
                                int64_t max_choices,
                                uint64_t random_seed,
                                GenerateSpec spec,
                                PreparedRequest& prepared);

// For /tokenize and /detokenize, which take several contexts' worth, and no more: what a tokenizer needs for
// each byte of a text is a microsecond and hundreds of bytes.
std::optional<ApiError> tokenize_text(const ServedModel& model,
                                      const std::string& text,
                                      bool add_special_tokens,
                                      std::vector<int32_t>& ids);
std::optional<ApiError> tokenize_chat(const ServedModel& model,
                                      const ChatInput& chat,
                                      bool add_special_tokens,
                                      std::vector<int32_t>& ids);
std::optional<ApiError> check_detokenized(const ServedModel& model, const std::vector<int32_t>& ids);

}  // namespace llm_dist::server
