#include "launch/load_prompts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "launch/random_lengths.h"
#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

using nlohmann::json;

constexpr double kAskSeconds = 60;
constexpr size_t kSampleWords = 4000;  // a few thousand different ids of an ordinary vocabulary

size_t below(size_t limit, std::mt19937_64& random) {
  return std::uniform_int_distribution<size_t>(0, limit - 1)(random);
}

// Words, numbers and punctuation: whatever the tokenizer makes of them are ids of the model.
std::string sample_text() {
  std::mt19937_64 random(1);
  std::string text = random_words(kSampleWords, random);
  for (char c = '!'; c <= '~'; ++c) text += std::string(" ") + c;
  for (int number = 0; number < 1000; number += 7) text += format(" {}", number);
  return text;
}

bool is_not_served(int status) { return status == 404 || status == 405 || status == 501; }

json completion_fields(const PromptOptions& options) {
  json body = {{"model", options.model},
               {"max_tokens", options.output_len},
               {"temperature", options.temperature},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (options.ignore_eos) body["ignore_eos"] = true;
  return body;
}

json messages_of(const std::string& text) { return json::array({{{"role", "user"}, {"content", text}}}); }

}  // namespace

std::string random_words(size_t count, std::mt19937_64& random) {
  constexpr std::string_view kConsonants = "bcdfghjklmnpqrstvwxyz";
  constexpr std::string_view kVowels = "aeiou";
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    for (size_t syllables = 1 + below(3, random); syllables > 0; --syllables) {
      text += kConsonants[below(kConsonants.size(), random)];
      text += kVowels[below(kVowels.size(), random)];
    }
    if (below(2, random) == 0) text += kConsonants[below(kConsonants.size(), random)];
  }
  return text;
}

Result<std::string> PromptMaker::ask(const std::string& path, const std::string& body, bool& served) {
  auto answer = client_->request(request_to(*server_, path, body), Deadline::after_seconds(kAskSeconds));
  RETURN_IF_ERROR(with_server_advice(answer.status()));
  http::Response& response = *answer;
  served = !is_not_served(response.status);
  if (!served) return std::string();
  RETURN_IF_ERROR(status_of(response).with_context("POST " + path));
  return std::move(response.body);
}

Result<PromptMaker> PromptMaker::create(http::Client& client,
                                        const ServerAccess& server,
                                        PromptOptions options) {
  PromptMaker maker(client, server, std::move(options));
  json question = {{"model", maker.options_.model}, {"prompt", sample_text()}, {"add_special_tokens", false}};
  bool served = false;
  ASSIGN_OR_RETURN(std::string answer, maker.ask("/tokenize", question.dump(), served));
  if (!served) return maker;
  json tokens = json::parse(answer, nullptr, false);
  if (!tokens.is_object() || !tokens["tokens"].is_array())
    return internal_error("POST /tokenize: the answer names no tokens");
  for (const json& id : tokens["tokens"]) {
    if (id.is_number_integer()) maker.ids_.push_back(id.get<int32_t>());
  }
  std::sort(maker.ids_.begin(), maker.ids_.end());
  maker.ids_.erase(std::unique(maker.ids_.begin(), maker.ids_.end()), maker.ids_.end());
  return maker;
}

std::string PromptMaker::kind() const { return ids_.empty() ? "random words" : "random token ids"; }

Result<std::string> PromptMaker::make_one(size_t length, std::mt19937_64& random) {
  json body = completion_fields(options_);
  if (ids_.empty()) {
    std::string text = random_words(length, random);
    (options_.chat ? body["messages"] : body["prompt"]) = options_.chat ? messages_of(text) : json(text);
    return body.dump();
  }
  std::vector<int32_t> ids(length);
  for (int32_t& id : ids) id = ids_[below(ids_.size(), random)];
  if (!options_.chat) {
    body["prompt"] = ids;
    return body.dump();
  }
  // A chat takes text: the one of these ids, which may become a few more or fewer when it is read again.
  bool served = false;
  json question = {{"model", options_.model}, {"tokens", ids}};
  ASSIGN_OR_RETURN(std::string answer, ask("/detokenize", question.dump(), served));
  json text = json::parse(answer, nullptr, false);
  if (!text.is_object() || !text["prompt"].is_string())
    return internal_error("POST /detokenize: the answer names no prompt");
  body["messages"] = messages_of(text["prompt"].get<std::string>());
  return body.dump();
}

Result<std::vector<std::string>> PromptMaker::make(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::string> bodies;
  bodies.reserve(count);
  RandomLengths lengths(options_.input_len, options_.range_ratio, static_cast<int>(count));
  for (size_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(std::string body, make_one(static_cast<size_t>(lengths.next(random)), random));
    bodies.push_back(std::move(body));
  }
  return bodies;
}

}  // namespace llm_dist::launch
