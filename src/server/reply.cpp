#include "src/server/reply.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/base/format.h"
#include "src/text/utf8_stream.h"

namespace llm_dist::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr float kMinLogprob = -9999.0f;  // JSON has no infinity; OpenAI writes this

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

double finite(float logprob) { return logprob > kMinLogprob ? logprob : kMinLogprob; }

// A token may be part of a character: OpenAI's notation for those, which keeps them apart as JSON keys.
std::string printable(const std::string& bytes) {
  if (text::is_valid_utf8(bytes)) return bytes;
  constexpr char kHex[] = "0123456789abcdef";
  std::string text = "bytes:";
  for (char c : bytes) {
    auto byte = static_cast<unsigned char>(c);
    text += "\\x";
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  return text;
}

Json byte_array(const std::string& bytes) {
  Json array = Json::array();
  for (char c : bytes) array.push_back(static_cast<unsigned char>(c));
  return array;
}

// Of a TokenLogprob or a TopLogprob.
template <typename Logprob>
std::string name_of(const Logprob& of, TokenNames names) {
  return names == TokenNames::kIds ? "token_id:" + std::to_string(of.token) : printable(of.bytes);
}

template <typename Logprob>
Json chat_token(const Logprob& of, TokenNames names) {
  return {{"token", name_of(of, names)}, {"logprob", finite(of.logprob)}, {"bytes", byte_array(of.bytes)}};
}

Json chat_logprobs(const std::vector<TokenLogprob>& tokens, TokenNames names) {
  Json content = Json::array();
  for (const TokenLogprob& token : tokens) {
    Json entry = chat_token(token, names);
    entry["top_logprobs"] = Json::array();
    for (const TopLogprob& top : token.top) entry["top_logprobs"].push_back(chat_token(top, names));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json text_logprobs(const std::vector<TokenLogprob>& tokens, TokenNames names) {
  Json json = {{"tokens", Json::array()},
               {"token_logprobs", Json::array()},
               {"top_logprobs", Json::array()},
               {"text_offset", Json::array()}};
  for (const TokenLogprob& token : tokens) {
    json["tokens"].push_back(name_of(token, names));
    json["text_offset"].push_back(token.text_offset);
    if (!token.known) {
      json["token_logprobs"].push_back(nullptr);
      json["top_logprobs"].push_back(nullptr);
      continue;
    }
    json["token_logprobs"].push_back(finite(token.logprob));
    Json top = Json::object();
    for (const TopLogprob& one : token.top) top[name_of(one, names)] = finite(one.logprob);
    top[name_of(token, names)] = finite(token.logprob);
    json["top_logprobs"].push_back(std::move(top));
  }
  return json;
}

Json prompt_logprob(const std::string& bytes, float logprob, const Json& rank) {
  return {{"logprob", finite(logprob)}, {"rank", rank}, {"decoded_token", printable(bytes)}};
}

// As vLLM writes them: an object for each token, by the ids of the token itself and of the likeliest ones.
Json prompt_logprobs_of(const std::vector<TokenLogprob>& tokens) {
  Json list = Json::array();
  for (const TokenLogprob& token : tokens) {
    if (!token.known) {
      list.push_back(nullptr);
      continue;
    }
    Json entry = Json::object();
    entry[std::to_string(token.token)] = prompt_logprob(token.bytes, token.logprob, nullptr);
    for (size_t i = 0; i < token.top.size(); ++i) {
      const TopLogprob& top = token.top[i];
      entry[std::to_string(top.token)] = prompt_logprob(top.bytes, top.logprob, i + 1);
    }
    list.push_back(std::move(entry));
  }
  return list;
}

Json logprobs_of(const ReplyHead& head, const Delta& delta) {
  if (!head.with_logprobs) return nullptr;
  return head.endpoint == Endpoint::kChat ? chat_logprobs(delta.logprobs, head.token_names)
                                          : text_logprobs(delta.logprobs, head.token_names);
}

Json finish_of(const ChoiceReply& choice) {
  if (choice.finish == sched::FinishReason::kNone) return nullptr;
  return choice.finish == sched::FinishReason::kLength ? "length" : "stop";
}

Json usage_of(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", 0}}}};
}

Json head_of(const ReplyHead& head, bool chunk) {
  bool chat = head.endpoint == Endpoint::kChat;
  const char* object = !chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", head.id},
          {"object", object},
          {"created", head.created_unix_s},
          {"model", head.model},
          {"system_fingerprint", head.system_fingerprint},
          {"choices", Json::array()}};
}

Json chat_delta(const ChoiceReply& choice) {
  Json delta = Json::object();
  if (choice.role) delta["role"] = "assistant";
  if (choice.role || !choice.content.text.empty()) delta["content"] = choice.content.text;
  return delta;
}

Json choice_json(const ReplyHead& head, const ChoiceReply& choice, bool chunk) {
  Json json = {{"index", choice.index}};
  if (head.endpoint == Endpoint::kCompletions) {
    json["text"] = choice.content.text;
  } else if (chunk) {
    json["delta"] = chat_delta(choice);
  } else {
    json["message"] = {{"role", "assistant"}, {"content", choice.content.text}, {"refusal", nullptr}};
  }
  // A chunk without tokens has no log-probabilities, rather than an empty list of them.
  bool empty_chunk = chunk && choice.content.logprobs.empty();
  json["logprobs"] = empty_chunk ? Json(nullptr) : logprobs_of(head, choice.content);
  json["finish_reason"] = finish_of(choice);
  if (choice.prompt_logprobs != nullptr && head.endpoint == Endpoint::kCompletions) {
    json["prompt_logprobs"] = prompt_logprobs_of(*choice.prompt_logprobs);
  }
  return json;
}

Json model_json(const std::string& name, int64_t created_unix_s, int64_t max_model_len) {
  return {{"id", name},
          {"object", "model"},
          {"created", created_unix_s},
          {"owned_by", "llm-dist"},
          {"max_model_len", max_model_len}};
}

}  // namespace

std::string render_reply(const ReplyHead& head, const std::vector<ChoiceReply>& choices, const Usage& usage) {
  Json reply = head_of(head, false);
  for (const ChoiceReply& choice : choices) reply["choices"].push_back(choice_json(head, choice, false));
  reply["usage"] = usage_of(usage);
  if (head.endpoint == Endpoint::kChat && choices.front().prompt_logprobs != nullptr) {
    reply["prompt_logprobs"] = prompt_logprobs_of(*choices.front().prompt_logprobs);
  }
  return dump(reply);
}

std::string render_chunk(const ReplyHead& head, const ChoiceReply& choice) {
  Json chunk = head_of(head, true);
  chunk["choices"].push_back(choice_json(head, choice, true));
  if (head.include_usage) chunk["usage"] = nullptr;
  return dump(chunk);
}

std::string render_usage_chunk(const ReplyHead& head, const Usage& usage) {
  Json chunk = head_of(head, true);
  chunk["usage"] = usage_of(usage);
  return dump(chunk);
}

std::string render_models(const std::vector<std::string>& names,
                          int64_t created_unix_s,
                          int64_t max_model_len) {
  Json list = {{"object", "list"}, {"data", Json::array()}};
  for (const std::string& name : names)
    list["data"].push_back(model_json(name, created_unix_s, max_model_len));
  return dump(list);
}

std::string render_model(const std::string& name, int64_t created_unix_s, int64_t max_model_len) {
  return dump(model_json(name, created_unix_s, max_model_len));
}

std::string render_tokens(const std::vector<int32_t>& ids,
                          int64_t max_model_len,
                          const std::function<std::string(int32_t)>& spelling) {
  // Written as it comes: a tree of a million tokens takes a hundred megabytes.
  std::string text = "{" + format(R"("count":{},"max_model_len":{},)", ids.size(), max_model_len);
  auto write_list = [&](const char* key, const auto& written) {
    text += format(R"("{}":[)", key);
    for (size_t i = 0; i < ids.size(); ++i) text += (i > 0 ? "," : "") + written(ids[i]);
    text += "]";
  };
  if (spelling) {
    write_list("token_strs", [&](int32_t id) { return dump(spelling(id)); });
    text += ",";
  }
  write_list("tokens", [](int32_t id) { return std::to_string(id); });
  return text + "}";
}

std::string render_text(const std::string& key, const std::string& text) {
  Json json = Json::object();
  json[key] = text;
  return dump(json);
}

}  // namespace llm_dist::server
