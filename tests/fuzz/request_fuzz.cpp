// The body of a generating request, read as each endpoint's: what is accepted is within the documented
// ranges, and a refusal is one that a client can be sent.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/server/request_parser.h"
#include "tests/fuzz/fuzz.h"

namespace llm_dist::fuzz {
namespace {

using nlohmann::json;
using namespace llm_dist::server;

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

bool inside(double value, double min, double max) { return value >= min && value <= max; }

void expect_refusal(const ApiError& error, size_t body_bytes) {
  CHECK_EQ(error.status, 400);
  CHECK(!error.message.empty());
  // It may quote the body, but not make much more of it.
  CHECK(error.message.size() + error.param.size() <= 4 * body_bytes + 4096, "{} bytes", error.message.size());
  json reply = json::parse(error_json(error), nullptr, false);
  CHECK(reply.is_object() && reply["error"]["message"].is_string());
}

void expect_chat(const ChatInput& chat) {
  json messages = json::parse(chat.messages_json, nullptr, false);
  CHECK(messages.is_array() && !messages.empty());
  for (const json& message : messages) {
    CHECK(message.is_object() && message["content"].is_string());
    auto role = message["role"].get<std::string>();
    CHECK(role == "system" || role == "user" || role == "assistant", "{}", role);
  }
  CHECK(chat.kwargs_json.empty() || json::parse(chat.kwargs_json, nullptr, false).is_object());
  CHECK(!(chat.add_generation_prompt && chat.continue_final_message));
}

void expect_prompts(const std::vector<PromptInput>& prompts) {
  CHECK(!prompts.empty());
  for (const PromptInput& prompt : prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) CHECK(is_utf8(*text));
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt))
      for (int32_t id : *ids) CHECK_GE(id, 0);
  }
}

void expect_sampling(const GenerateSpec& spec) {
  CHECK(inside(spec.temperature.value_or(0), 0, 2));
  CHECK(inside(spec.top_p.value_or(1), 1e-6, 1));
  CHECK(inside(spec.min_p.value_or(0), 0, 1));
  CHECK(inside(spec.repetition_penalty.value_or(1), 1e-3, 10));
  CHECK(inside(spec.presence_penalty, -2, 2) && inside(spec.frequency_penalty, -2, 2));
  CHECK(spec.max_tokens.value_or(1) >= 0 && spec.max_tokens.value_or(1) <= kMaxInt);
  CHECK(spec.top_k.value_or(0) >= -1 && spec.top_k.value_or(0) <= kMaxInt);
  CHECK(spec.min_tokens >= 0 && spec.min_tokens <= spec.max_tokens.value_or(kMaxInt));
  CHECK(spec.n >= 1 && spec.n <= 128 && spec.best_of >= 0 && spec.best_of <= 128);
  CHECK(spec.num_logprobs >= -1 && spec.num_logprobs <= 20);
  for (const TokenBias& bias : spec.logit_bias) CHECK(bias.token >= 0 && std::isfinite(bias.bias));
  for (int32_t id : spec.stop_token_ids) CHECK_GE(id, 0);
  for (int32_t id : spec.allowed_token_ids) CHECK_GE(id, 0);
  CHECK_LE(spec.stop.size(), 16u);
  for (const std::string& stop : spec.stop) CHECK(!stop.empty() && is_utf8(stop));
}

void read_generate(Endpoint endpoint, std::string_view body) {
  GenerateSpec spec;
  if (auto error = parse_generate(endpoint, body, spec)) return expect_refusal(*error, body.size());
  expect_sampling(spec);
  if (endpoint == Endpoint::kChat) return expect_chat(spec.chat);
  expect_prompts(spec.prompts);
}

void read_tokenize(std::string_view body) {
  TokenizeSpec spec;
  if (auto error = parse_tokenize(body, spec)) return expect_refusal(*error, body.size());
  CHECK(spec.prompt.has_value() != spec.chat.has_value());
  if (spec.chat) expect_chat(*spec.chat);
}

void read_detokenize(std::string_view body) {
  DetokenizeSpec spec;
  if (auto error = parse_detokenize(body, spec)) return expect_refusal(*error, body.size());
  for (int32_t id : spec.tokens) CHECK_GE(id, 0);
}

}  // namespace
}  // namespace llm_dist::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llm_dist;
  std::string_view body = fuzz::text_of(data, size);
  fuzz::read_generate(server::Endpoint::kChat, body);
  fuzz::read_generate(server::Endpoint::kCompletions, body);
  fuzz::read_tokenize(body);
  fuzz::read_detokenize(body);
  return 0;
}
