#include "src/server/request_schema.h"

#include <vector>

#include "src/base/format.h"
#include "src/base/nearest.h"

namespace llm_dist::server {
namespace {

constexpr uint8_t kChat = static_cast<uint8_t>(Endpoint::kChat);
constexpr uint8_t kText = static_cast<uint8_t>(Endpoint::kCompletions);
constexpr uint8_t kTok = static_cast<uint8_t>(Endpoint::kTokenize);
constexpr uint8_t kDetok = static_cast<uint8_t>(Endpoint::kDetokenize);
constexpr uint8_t kBoth = kChat | kText;
constexpr uint8_t kAll = kBoth | kTok | kDetok;
constexpr double kMaxInt = 2147483647.0;
// Each token of the history is compared with up to so many others, for each token that is drawn: with 64, a
// history made to take long costs milliseconds a token on a CPU.
constexpr double kMaxNgram = 64;

constexpr Field not_served(std::string_view name, uint8_t endpoints, std::string_view neutral = "[]") {
  return {.name = name, .endpoints = endpoints, .neutral = neutral, .served = false};
}

constexpr Field kFields[] = {
    {"model", kAll, kString},
    {"messages", kChat | kTok, kArray},
    {"prompt", kText | kTok, kString | kArray},
    {"tokens", kDetok, kArray},
    {"add_special_tokens", kTok, kBoolean},
    {"max_tokens", kChat, kInteger, 1, kMaxInt},
    {"max_tokens", kText, kInteger, 0, kMaxInt},
    {"max_completion_tokens", kChat, kInteger, 1, kMaxInt},
    {"temperature", kBoth, kNumber, 0, 2},
    {"top_p", kBoth, kNumber, 1e-6, 1},
    {"top_k", kBoth, kInteger, -1, kMaxInt},
    {"min_p", kBoth, kNumber, 0, 1},
    {"n", kBoth, kInteger, 1, 128},
    {"best_of", kText, kInteger, 1, 128},
    {"stop", kBoth, kString | kArray},
    {"stop_token_ids", kBoth, kArray},
    {"include_stop_str_in_output", kBoth, kBoolean},
    {"skip_special_tokens", kBoth, kBoolean},
    {"ignore_eos", kBoth, kBoolean},
    {"min_tokens", kBoth, kInteger, 0, kMaxInt},
    {"seed", kBoth, kInteger, -0x1p63, 0x1p64},
    {"presence_penalty", kBoth, kNumber, -2, 2},
    {"frequency_penalty", kBoth, kNumber, -2, 2},
    {"repetition_penalty", kBoth, kNumber, 1e-3, 10},
    {"no_repeat_ngram_size", kBoth, kInteger, 0, kMaxNgram},
    {"logit_bias", kBoth, kObject},
    {"allowed_token_ids", kBoth, kArray},
    {"bad_words", kBoth, kArray},
    {"logprobs", kChat, kBoolean},
    {"top_logprobs", kChat, kInteger, 0, 20},
    {"logprobs", kText, kInteger, 0, 20},
    {"prompt_logprobs", kBoth, kInteger, 0, 20},
    {"return_tokens_as_token_ids", kBoth, kBoolean},
    {"echo", kText, kBoolean},
    {"stream", kBoth, kBoolean},
    {"stream_options", kBoth, kObject},
    {"user", kBoth, kString},
    {"safety_identifier", kBoth, kString},
    {"prompt_cache_key", kBoth, kString},
    {"metadata", kBoth, kObject},
    {"priority", kBoth, kInteger, -kMaxInt, kMaxInt},
    {"add_generation_prompt", kChat | kTok, kBoolean},
    {"continue_final_message", kChat | kTok, kBoolean},
    {"chat_template_kwargs", kChat | kTok, kObject},
    {"return_token_strs", kTok, kBoolean},

    not_served("response_format", kBoth, R"([{"type": "text"}])"),
    not_served("tools", kChat, "[[]]"),
    not_served("tool_choice", kChat, R"(["none", "auto"])"),
    not_served("parallel_tool_calls", kChat, "[true, false]"),
    not_served("functions", kChat, "[[]]"),
    not_served("function_call", kChat, R"(["none", "auto"])"),
    not_served("suffix", kText, R"([""])"),
    not_served("structured_outputs", kBoth, "[{}]"),
    not_served("cache_salt", kBoth),
    not_served("use_beam_search", kBoth, "[false]"),
    not_served("beam_width", kBoth, "[1]"),
    not_served("length_penalty", kBoth, "[1]"),
    not_served("modalities", kChat, R"([["text"]])"),
    not_served("audio", kChat),
    not_served("prediction", kChat),
    not_served("reasoning_effort", kChat),
    not_served("verbosity", kChat),
    not_served("web_search_options", kChat),
    not_served("store", kChat, "[false]"),
    not_served("service_tier", kChat, R"(["auto", "default"])"),
};

}  // namespace

std::string_view path_of(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChat: return "/v1/chat/completions";
    case Endpoint::kCompletions: return "/v1/completions";
    case Endpoint::kTokenize: return "/tokenize";
    case Endpoint::kDetokenize: return "/detokenize";
  }
  return "";
}

std::span<const Field> request_fields() { return kFields; }

const Field* find_field(Endpoint endpoint, std::string_view name) {
  for (const Field& field : kFields) {
    if (field.name == name && (field.endpoints & static_cast<uint8_t>(endpoint)) != 0) return &field;
  }
  return nullptr;
}

std::string hint_for(Endpoint endpoint, std::string_view name) {
  for (Endpoint other : {Endpoint::kCompletions, Endpoint::kChat})
    if (find_field(other, name) != nullptr) return format(", but {} has it", path_of(other));
  std::vector<std::string_view> known;
  for (const Field& field : kFields) {
    if ((field.endpoints & static_cast<uint8_t>(endpoint)) != 0) known.push_back(field.name);
  }
  const std::string_view near = near_word(name, known);
  return near.empty() ? "" : format("; did you mean '{}'?", near);
}

}  // namespace llm_dist::server
