#include "src/server/reply.h"

#include <algorithm>
#include <span>

#include "src/server/json_writer.h"
#include "src/text/utf8_stream.h"

namespace llm_dist::server {
namespace {

constexpr float kMinLogprob = -9999.0f;  // JSON has no infinity; OpenAI writes this

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

// Of a TokenLogprob or a TopLogprob.
template <typename Logprob>
std::string name_of(const Logprob& of, TokenNames names) {
  return names == TokenNames::kIds ? "token_id:" + std::to_string(of.token) : printable(of.bytes);
}

template <typename Logprob>
void write_chat_token(JsonWriter& json, const Logprob& of, TokenNames names) {
  json.field("token", name_of(of, names));
  json.field("logprob", finite(of.logprob));
  json.key("bytes");
  json.array(of.bytes, [&](char byte) { json.value(static_cast<unsigned char>(byte)); });
}

void write_chat_logprobs(JsonWriter& json, const std::vector<TokenLogprob>& tokens, TokenNames names) {
  auto write_top = [&](const TopLogprob& top) { json.object([&] { write_chat_token(json, top, names); }); };
  auto write_token = [&](const TokenLogprob& token) {
    json.object([&] {
      write_chat_token(json, token, names);
      json.key("top_logprobs");
      json.array(token.top, write_top);
    });
  };
  json.object([&] {
    json.key("content");
    json.array(tokens, write_token);
    json.field("refusal", nullptr);
  });
}

// By their names: of tokens that are called alike the last one counts, and the token itself comes last.
void write_top_by_name(JsonWriter& json, const TokenLogprob& token, TokenNames names) {
  std::vector<std::pair<std::string, float>> by_name;
  by_name.reserve(token.top.size() + 1);
  auto add = [&](std::string name, float logprob) {
    auto same = std::ranges::find(by_name, name, &std::pair<std::string, float>::first);
    if (same == by_name.end()) same = by_name.emplace(same, std::move(name), logprob);
    same->second = logprob;
  };
  for (const TopLogprob& top : token.top) add(name_of(top, names), top.logprob);
  add(name_of(token, names), token.logprob);
  json.object([&] {
    for (const auto& [name, logprob] : by_name) json.field(name, finite(logprob));
  });
}

void write_text_logprobs(JsonWriter& json, const std::vector<TokenLogprob>& tokens, TokenNames names) {
  auto write_list = [&](const char* key, auto write) {
    json.key(key);
    json.array(tokens, write);
  };
  auto if_known = [&](auto write) {
    return [&json, write](const TokenLogprob& token) { token.known ? write(token) : json.value(nullptr); };
  };
  json.object([&] {
    write_list("tokens", [&](const TokenLogprob& token) { json.value(name_of(token, names)); });
    write_list("token_logprobs",
               if_known([&](const TokenLogprob& token) { json.value(finite(token.logprob)); }));
    write_list("top_logprobs",
               if_known([&](const TokenLogprob& token) { write_top_by_name(json, token, names); }));
    write_list("text_offset", [&](const TokenLogprob& token) { json.value(token.text_offset); });
  });
}

// `rank`: from 1 on; 0: not among the likeliest.
template <typename Logprob>
void write_prompt_logprob(JsonWriter& json, const Logprob& of, size_t rank) {
  json.key(std::to_string(of.token));
  json.object([&] {
    json.field("logprob", finite(of.logprob));
    rank == 0 ? json.field("rank", nullptr) : json.field("rank", rank);
    json.field("decoded_token", printable(of.bytes));
  });
}

void write_logprobs(JsonWriter& json, const ReplyHead& head, const Delta& delta) {
  if (!head.with_logprobs) return json.value(nullptr);
  head.endpoint == Endpoint::kChat ? write_chat_logprobs(json, delta.logprobs, head.token_names)
                                   : write_text_logprobs(json, delta.logprobs, head.token_names);
}

void write_usage(JsonWriter& json, const Usage& usage) {
  json.key("usage");
  json.object([&] {
    json.field("prompt_tokens", usage.prompt_tokens);
    json.field("completion_tokens", usage.completion_tokens);
    json.field("total_tokens", usage.prompt_tokens + usage.completion_tokens);
    json.key("prompt_tokens_details");
    json.object([&] { json.field("cached_tokens", 0); });
  });
}

void write_head(JsonWriter& json, const ReplyHead& head, bool chunk) {
  bool chat = head.endpoint == Endpoint::kChat;
  const char* object = !chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  json.field("id", head.id);
  json.field("object", object);
  json.field("created", head.created_unix_s);
  json.field("model", head.model);
  json.field("system_fingerprint", head.system_fingerprint);
}

void write_delta(JsonWriter& json, const ChoiceReply& choice) {
  json.key("delta");
  json.object([&] {
    if (choice.role) json.field("role", "assistant");
    if (choice.role || !choice.content.text.empty()) json.field("content", choice.content.text);
  });
}

void write_message(JsonWriter& json, const ChoiceReply& choice) {
  json.key("message");
  json.object([&] {
    json.field("role", "assistant");
    json.field("content", choice.content.text);
    json.field("refusal", nullptr);
  });
}

void write_finish(JsonWriter& json, sched::FinishReason finish) {
  json.key("finish_reason");
  if (finish == sched::FinishReason::kNone) return json.value(nullptr);
  json.value(finish == sched::FinishReason::kLength ? "length" : "stop");
}

void write_prompt_logprobs(JsonWriter& json, const std::string& elements) {
  json.key("prompt_logprobs");
  json.array_of(elements);
}

void write_choice(JsonWriter& json, const ReplyHead& head, const ChoiceReply& choice, bool chunk) {
  const bool chat = head.endpoint == Endpoint::kChat;
  json.field("index", choice.index);
  if (!chat) {
    json.field("text", choice.content.text);
  } else {
    chunk ? write_delta(json, choice) : write_message(json, choice);
  }
  json.key("logprobs");
  // A chunk without tokens has no log-probabilities, rather than an empty list of them.
  const bool empty_chunk = chunk && choice.content.logprobs.empty();
  empty_chunk ? json.value(nullptr) : write_logprobs(json, head, choice.content);
  write_finish(json, choice.finish);
  if (choice.prompt_logprobs != nullptr && !chat) write_prompt_logprobs(json, *choice.prompt_logprobs);
}

void write_choices(JsonWriter& json,
                   const ReplyHead& head,
                   std::span<const ChoiceReply> choices,
                   bool chunk) {
  json.key("choices");
  json.array(choices, [&](const ChoiceReply& choice) {
    json.object([&] { write_choice(json, head, choice, chunk); });
  });
}

void write_model(JsonWriter& json, const std::string& name, int64_t created_unix_s, int64_t max_model_len) {
  json.object([&] {
    json.field("id", name);
    json.field("object", "model");
    json.field("created", created_unix_s);
    json.field("owned_by", "llm-dist");
    json.field("max_model_len", max_model_len);
  });
}

// By write(json).
template <typename Write>
std::string written(Write write) {
  std::string text;
  JsonWriter json(text);
  write(json);
  return text;
}

// By write(json), which writes keys and their values.
template <typename Write>
std::string written_object(Write write) {
  return written([&](JsonWriter& json) { json.object([&] { write(json); }); });
}

}  // namespace

void append_prompt_logprob(std::string& elements, const TokenLogprob& token) {
  if (!elements.empty()) elements += ',';
  JsonWriter json(elements);
  if (!token.known) return json.value(nullptr);
  const auto own = std::ranges::find(token.top, token.token, &TopLogprob::token);
  const auto rank_own = static_cast<size_t>(own - token.top.begin()) + 1;
  json.object([&] {
    write_prompt_logprob(json, token, own == token.top.end() ? 0 : rank_own);
    for (size_t rank = 1; rank <= token.top.size(); ++rank) {
      if (rank != rank_own) write_prompt_logprob(json, token.top[rank - 1], rank);
    }
  });
}

std::string render_reply(const ReplyHead& head, const std::vector<ChoiceReply>& choices, const Usage& usage) {
  return written_object([&](JsonWriter& json) {
    write_head(json, head, false);
    write_choices(json, head, choices, false);
    write_usage(json, usage);
    const std::string* prompt_logprobs = choices.front().prompt_logprobs;
    if (head.endpoint == Endpoint::kChat && prompt_logprobs != nullptr) {
      write_prompt_logprobs(json, *prompt_logprobs);
    }
  });
}

std::string render_chunk(const ReplyHead& head, const ChoiceReply& choice) {
  return written_object([&](JsonWriter& json) {
    write_head(json, head, true);
    write_choices(json, head, {&choice, 1}, true);
    if (head.include_usage) json.field("usage", nullptr);
  });
}

std::string render_usage_chunk(const ReplyHead& head, const Usage& usage) {
  return written_object([&](JsonWriter& json) {
    write_head(json, head, true);
    write_choices(json, head, {}, true);
    write_usage(json, usage);
  });
}

std::string render_models(const std::vector<std::string>& names,
                          int64_t created_unix_s,
                          int64_t max_model_len) {
  return written_object([&](JsonWriter& json) {
    json.field("object", "list");
    json.key("data");
    json.array(names,
               [&](const std::string& name) { write_model(json, name, created_unix_s, max_model_len); });
  });
}

std::string render_model(const std::string& name, int64_t created_unix_s, int64_t max_model_len) {
  return written([&](JsonWriter& json) { write_model(json, name, created_unix_s, max_model_len); });
}

std::string render_tokens(const std::vector<int32_t>& ids,
                          int64_t max_model_len,
                          const std::function<std::string(int32_t)>& spelling) {
  return written_object([&](JsonWriter& json) {
    json.field("count", ids.size());
    json.field("max_model_len", max_model_len);
    if (spelling) {
      json.key("token_strs");
      json.array(ids, [&](int32_t id) { json.value(spelling(id)); });
    }
    json.key("tokens");
    json.array(ids, [&](int32_t id) { json.value(id); });
  });
}

std::string render_text(const std::string& key, const std::string& text) {
  return written_object([&](JsonWriter& json) { json.field(key, text); });
}

}  // namespace llm_dist::server
