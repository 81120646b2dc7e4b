#include "src/server/request_parser.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/format.h"
#include "src/base/json_text.h"

namespace llm_dist::server {
namespace {

using Json = nlohmann::json;
using MaybeError = std::optional<ApiError>;

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxBadWords = 1024;
constexpr double kMaxBias = 100;

#define RETURN_IF_REFUSED(expr)                        \
  do {                                                 \
    if (MaybeError refused_ = (expr)) return refused_; \
  } while (false)

ApiError refuse(std::string param, std::string message) {
  return {.status = 400, .message = std::move(message), .param = std::move(param)};
}

MaybeError parse_object(std::string_view text, Json& body) {
  if (json_is_too_deep(text))
    return refuse("", format("the body is nested deeper than {} levels", kMaxJsonDepth));
  try {
    body = Json::parse(text);
  } catch (const Json::exception& error) {
    std::string_view what = error.what();
    size_t label = what.find("] ");
    return refuse("",
                  format("the body is not valid JSON: {}",
                         label == std::string_view::npos ? what : what.substr(label + 2)));
  }
  if (!body.is_object())
    return refuse("", format("the body must be a JSON object, not {}", body.type_name()));
  return std::nullopt;
}

// Null when the field is absent or null, which is the same thing.
const Json* present(const Json& object, const char* name) {
  auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

template <typename T>
void read(const Json& body, const char* name, T& into) {
  if (const Json* value = present(body, name)) into = value->get<T>();
}
template <typename T>
void read(const Json& body, const char* name, std::optional<T>& into) {
  if (const Json* value = present(body, name)) into = value->get<T>();
}

uint8_t type_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::boolean: return kBoolean;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return kInteger | kNumber;
    case Json::value_t::number_float: return kNumber;
    case Json::value_t::string: return kString;
    case Json::value_t::array: return kArray;
    case Json::value_t::object: return kObject;
    default: return 0;
  }
}

std::string name_types(uint8_t types) {
  constexpr std::pair<uint8_t, const char*> kNames[] = {{kBoolean, "a boolean"},
                                                        {kInteger, "an integer"},
                                                        {kNumber, "a number"},
                                                        {kString, "a string"},
                                                        {kArray, "an array"},
                                                        {kObject, "an object"}};
  std::string names;
  for (const auto& [type, name] : kNames) {
    if ((types & type) != 0) names += (names.empty() ? "" : " or ") + std::string(name);
  }
  return names;
}

MaybeError check_served(const Field& field, const Json& value) {
  for (const Json& neutral : Json::parse(field.neutral)) {
    if (value == neutral) return std::nullopt;
  }
  return ApiError{.status = 400,
                  .message = format("'{}' is known but not served by this server; leave it out", field.name),
                  .param = std::string(field.name),
                  .code = "unsupported_parameter"};
}

// A whole number with all its digits.
std::string in_full(double limit) {
  constexpr double kExact = 0x1p53;
  const bool whole = std::floor(limit) == limit && std::fabs(limit) < kExact;
  return whole ? std::to_string(static_cast<int64_t>(limit)) : format("{}", limit);
}

MaybeError check_value(const Field& field, const Json& value) {
  if (!field.served) return check_served(field, value);
  if ((type_of(value) & field.types) == 0) {
    return refuse(std::string(field.name),
                  format("'{}' must be {}, not {}", field.name, name_types(field.types), value.type_name()));
  }
  if (value.is_number() && field.min <= field.max) {
    double number = value.get<double>();
    if (number < field.min || number > field.max) {
      return refuse(std::string(field.name),
                    format("'{}' must be between {} and {}, not {}",
                           field.name,
                           in_full(field.min),
                           in_full(field.max),
                           value.dump()));
    }
  }
  return std::nullopt;
}

MaybeError check_fields(Endpoint endpoint, const Json& body) {
  for (const auto& [name, value] : body.items()) {
    const Field* field = find_field(endpoint, name);
    if (field == nullptr) {
      return ApiError{
          .status = 400,
          .message = format("unknown field '{}' of {}{}", name, path_of(endpoint), hint_for(endpoint, name)),
          .param = name,
          .code = "unknown_parameter"};
    }
    if (!value.is_null()) RETURN_IF_REFUSED(check_value(*field, value));
  }
  if (present(body, "model") == nullptr && endpoint != Endpoint::kTokenize &&
      endpoint != Endpoint::kDetokenize) {
    return refuse("model", "'model' is required");
  }
  return std::nullopt;
}

MaybeError read_token_ids(const Json& array, const std::string& param, std::vector<int32_t>& into) {
  for (const Json& value : array) {
    bool fits = value.is_number_integer() && value.get<double>() >= 0 &&
                value.get<double>() <= std::numeric_limits<int32_t>::max();
    if (!fits) return refuse(param, format("'{}' must hold token ids (integers from 0 on)", param));
    into.push_back(value.get<int32_t>());
  }
  return std::nullopt;
}

// A string, or an array of {"type": "text", "text": …} parts, joined by line feeds.
MaybeError read_content(const Json& content, const std::string& param, std::string& into) {
  if (content.is_string()) {
    into = content.get<std::string>();
    return std::nullopt;
  }
  if (!content.is_array())
    return refuse(param, format("'{}' must be a string or an array of text parts", param));
  bool first = true;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    std::string part_param = format("{}[{}]", param, i);
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      return refuse(part_param, format("'{}' must be an object with a 'type'", part_param));
    }
    auto type = part["type"].get<std::string>();
    if (type != "text") {
      return ApiError{
          .status = 400,
          .message = format("'{}': parts of type '{}' are not served, only 'text'", part_param, type),
          .param = part_param,
          .code = "unsupported_parameter"};
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      return refuse(part_param + ".text", format("'{}.text' must be a string", part_param));
    }
    into += (first ? "" : "\n") + part["text"].get<std::string>();
    first = false;
  }
  return std::nullopt;
}

MaybeError read_role(const Json& message, const std::string& param, std::string& role) {
  const Json* value = present(message, "role");
  if (value == nullptr || !value->is_string()) {
    return refuse(param + ".role", format("'{}.role' must be a string", param));
  }
  role = value->get<std::string>();
  if (role == "developer") role = "system";  // OpenAI's newer name of it, which templates do not know
  if (role == "system" || role == "user" || role == "assistant") return std::nullopt;
  bool tool = role == "tool" || role == "function";
  return refuse(param + ".role",
                tool ? format("'{}.role': tool calls are not served", param)
                     : format("'{}.role' must be system, user or assistant, not '{}'", param, role));
}

MaybeError read_message(const Json& message, const std::string& param, Json& into) {
  if (!message.is_object()) return refuse(param, format("'{}' must be an object", param));
  for (const auto& [name, value] : message.items()) {
    if (name == "role" || name == "content" || value.is_null()) continue;
    if (name == "name" && value.is_string()) continue;
    bool known = name == "tool_calls" || name == "tool_call_id" || name == "function_call" ||
                 name == "audio" || name == "refusal";
    if (known && value.empty()) continue;
    std::string field = param + "." + name;
    return ApiError{.status = 400,
                    .message = known            ? format("'{}' is known but not served", field)
                               : name == "name" ? format("'{}' must be a string", field)
                                                : format("unknown field '{}'", field),
                    .param = field,
                    .code = known            ? "unsupported_parameter"
                            : name == "name" ? ""
                                             : "unknown_parameter"};
  }
  std::string role;
  RETURN_IF_REFUSED(read_role(message, param, role));
  const Json* content = present(message, "content");
  if (content == nullptr) return refuse(param + ".content", format("'{}.content' is required", param));
  std::string text;
  RETURN_IF_REFUSED(read_content(*content, param + ".content", text));
  into["role"] = role;
  into["content"] = text;
  read(message, "name", into["name"]);
  if (into["name"].is_null()) into.erase("name");
  return std::nullopt;
}

MaybeError read_chat(const Json& body, ChatInput& chat) {
  const Json* messages = present(body, "messages");
  if (messages == nullptr || messages->empty()) {
    return refuse("messages", "'messages' must hold at least one message");
  }
  Json checked = Json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    RETURN_IF_REFUSED(
        read_message((*messages)[i], format("messages[{}]", i), checked.emplace_back(Json::object())));
  }
  chat.messages_json = checked.dump();
  if (const Json* kwargs = present(body, "chat_template_kwargs")) chat.kwargs_json = kwargs->dump();
  read(body, "continue_final_message", chat.continue_final_message);
  chat.add_generation_prompt = !chat.continue_final_message;
  read(body, "add_generation_prompt", chat.add_generation_prompt);
  if (chat.add_generation_prompt && chat.continue_final_message) {
    return refuse("continue_final_message",
                  "'continue_final_message' and 'add_generation_prompt' cannot both be true");
  }
  return std::nullopt;
}

MaybeError read_prompt(const Json& body, std::vector<PromptInput>& prompts) {
  const Json* prompt = present(body, "prompt");
  if (prompt == nullptr) return refuse("prompt", "'prompt' is required");
  if (prompt->is_string()) {
    prompts.emplace_back(prompt->get<std::string>());
    return std::nullopt;
  }
  if (prompt->empty()) return refuse("prompt", "'prompt' is empty");
  if ((*prompt)[0].is_number()) {
    return read_token_ids(*prompt, "prompt", std::get<1>(prompts.emplace_back(std::vector<int32_t>())));
  }
  for (size_t i = 0; i < prompt->size(); ++i) {
    const Json& one = (*prompt)[i];
    if (one.type() != (*prompt)[0].type() || (!one.is_string() && !one.is_array())) {
      return refuse("prompt",
                    "'prompt' must be a string, an array of strings, an array of token ids, or an array of "
                    "arrays of token ids");
    }
    if (one.is_string()) {
      prompts.emplace_back(one.get<std::string>());
    } else {
      auto& ids = std::get<1>(prompts.emplace_back(std::vector<int32_t>()));
      RETURN_IF_REFUSED(read_token_ids(one, format("prompt[{}]", i), ids));
    }
  }
  return std::nullopt;
}

MaybeError read_stop(const Json& body, std::vector<std::string>& stops) {
  const Json* stop = present(body, "stop");
  if (stop == nullptr) return std::nullopt;
  Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (list.size() > kMaxStops) {
    return refuse("stop", format("'stop' may hold at most {} strings, not {}", kMaxStops, list.size()));
  }
  for (const Json& one : list) {
    if (!one.is_string()) return refuse("stop", "'stop' must be a string or an array of strings");
    auto text = one.get<std::string>();
    if (text.empty()) return refuse("stop", "'stop' may not hold an empty string");
    if (text.size() > kMaxStopBytes) {
      return refuse("stop", format("a 'stop' string may have at most {} bytes", kMaxStopBytes));
    }
    stops.push_back(std::move(text));
  }
  return std::nullopt;
}

// The token id that a JSON object's name spells; nothing when it spells none.
std::optional<int32_t> token_id_of(const std::string& name) {
  int32_t id = -1;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
  if (error != std::errc() || id < 0 || std::to_string(id) != name) return std::nullopt;
  return id;
}

MaybeError read_logit_bias(const Json& body, std::vector<TokenBias>& biases) {
  const Json* map = present(body, "logit_bias");
  if (map == nullptr) return std::nullopt;
  for (const auto& [name, value] : map->items()) {
    auto id = token_id_of(name);
    if (!id) return refuse("logit_bias", format("'logit_bias' is by token id; '{}' is none", name));
    if (!value.is_number() || std::abs(value.get<double>()) > kMaxBias) {
      return refuse(
          "logit_bias",
          format("'logit_bias' of token {} must be a number between {} and {}", name, -kMaxBias, kMaxBias));
    }
    biases.push_back({*id, value.get<float>()});
  }
  return std::nullopt;
}

MaybeError read_bad_words(const Json& body, std::vector<std::string>& words) {
  const Json* list = present(body, "bad_words");
  if (list == nullptr) return std::nullopt;
  if (list->size() > kMaxBadWords) {
    return refuse("bad_words",
                  format("'bad_words' may hold at most {} words, not {}", kMaxBadWords, list->size()));
  }
  for (const Json& word : *list) {
    if (!word.is_string() || word.get_ref<const std::string&>().empty()) {
      return refuse("bad_words", "'bad_words' must hold strings that are not empty");
    }
    words.push_back(word.get<std::string>());
  }
  return std::nullopt;
}

// What changes single tokens' chances.
MaybeError read_token_rules(const Json& body, GenerateSpec& spec) {
  read(body, "no_repeat_ngram_size", spec.no_repeat_ngram_size);
  RETURN_IF_REFUSED(read_logit_bias(body, spec.logit_bias));
  RETURN_IF_REFUSED(read_bad_words(body, spec.bad_words));
  const Json* allowed = present(body, "allowed_token_ids");
  if (allowed == nullptr) return std::nullopt;
  if (allowed->empty()) {
    return refuse("allowed_token_ids", "'allowed_token_ids' must hold at least one token id");
  }
  return read_token_ids(*allowed, "allowed_token_ids", spec.allowed_token_ids);
}

MaybeError read_stream(const Json& body, GenerateSpec& spec) {
  read(body, "stream", spec.stream);
  const Json* options = present(body, "stream_options");
  if (options == nullptr) return std::nullopt;
  if (!spec.stream) return refuse("stream_options", "'stream_options' needs 'stream': true");
  for (const auto& [name, value] : options->items()) {
    std::string param = "stream_options." + name;
    bool known = name == "include_usage" || name == "include_obfuscation" || name == "continuous_usage_stats";
    if (!known)
      return refuse(param, format("unknown field '{}'; the nearest known one is 'include_usage'", param));
    if (value.is_null()) continue;
    if (!value.is_boolean()) return refuse(param, format("'{}' must be a boolean", param));
    if (name != "include_usage" && value.get<bool>()) {
      return refuse(param, format("'{}' is known but not served by this server; leave it out", param));
    }
  }
  read(*options, "include_usage", spec.include_usage);
  return std::nullopt;
}

MaybeError read_logprobs(const Json& body, GenerateSpec& spec) {
  if (spec.endpoint == Endpoint::kCompletions) {
    read(body, "logprobs", spec.num_logprobs);
    return std::nullopt;
  }
  bool wanted = false;
  read(body, "logprobs", wanted);
  const Json* top = present(body, "top_logprobs");
  if (top != nullptr && !wanted) return refuse("top_logprobs", "'top_logprobs' needs 'logprobs': true");
  if (wanted) spec.num_logprobs = top == nullptr ? 0 : top->get<int32_t>();
  return std::nullopt;
}

MaybeError check_together(const GenerateSpec& spec) {
  if (spec.max_tokens && spec.min_tokens > *spec.max_tokens) {
    return refuse(
        "min_tokens",
        format("'min_tokens' ({}) is more than 'max_tokens' ({})", spec.min_tokens, *spec.max_tokens));
  }
  if (spec.max_tokens == 0 && !spec.echo) return refuse("max_tokens", "'max_tokens' 0 needs 'echo': true");
  if (spec.best_of != 0 && spec.best_of < spec.n) {
    return refuse("best_of", format("'best_of' ({}) is less than 'n' ({})", spec.best_of, spec.n));
  }
  if (spec.stream && spec.best_of > spec.n) {
    return refuse("best_of", "'best_of' cannot be streamed: the best are known at the end");
  }
  if (spec.stream && spec.num_prompt_logprobs >= 0) {
    return refuse("prompt_logprobs", "'prompt_logprobs' cannot be streamed; 'echo' with 'logprobs' can");
  }
  return std::nullopt;
}

void read_sampling(const Json& body, GenerateSpec& spec) {
  read(body, "max_tokens", spec.max_tokens);
  read(body, "max_completion_tokens", spec.max_tokens);
  read(body, "temperature", spec.temperature);
  read(body, "top_p", spec.top_p);
  read(body, "min_p", spec.min_p);
  read(body, "top_k", spec.top_k);
  read(body, "repetition_penalty", spec.repetition_penalty);
  read(body, "presence_penalty", spec.presence_penalty);
  read(body, "frequency_penalty", spec.frequency_penalty);
  read(body, "min_tokens", spec.min_tokens);
  read(body, "n", spec.n);
  read(body, "best_of", spec.best_of);
  read(body, "prompt_logprobs", spec.num_prompt_logprobs);
  read(body, "priority", spec.priority);
  read(body, "include_stop_str_in_output", spec.include_stop);
  read(body, "skip_special_tokens", spec.skip_special_tokens);
  read(body, "ignore_eos", spec.ignore_eos);
  read(body, "echo", spec.echo);
  bool names_are_ids = false;
  read(body, "return_tokens_as_token_ids", names_are_ids);
  if (names_are_ids) spec.token_names = TokenNames::kIds;
  // A negative seed is a seed like any other.
  if (const Json* seed = present(body, "seed")) {
    spec.seed =
        seed->is_number_unsigned() ? seed->get<uint64_t>() : static_cast<uint64_t>(seed->get<int64_t>());
  }
}

}  // namespace

std::optional<ApiError> parse_generate(Endpoint endpoint, std::string_view text, GenerateSpec& spec) {
  spec = GenerateSpec{};
  spec.endpoint = endpoint;
  Json body;
  RETURN_IF_REFUSED(parse_object(text, body));
  RETURN_IF_REFUSED(check_fields(endpoint, body));
  read(body, "model", spec.model);
  read_sampling(body, spec);
  RETURN_IF_REFUSED(read_stop(body, spec.stop));
  if (const Json* ids = present(body, "stop_token_ids")) {
    RETURN_IF_REFUSED(read_token_ids(*ids, "stop_token_ids", spec.stop_token_ids));
  }
  RETURN_IF_REFUSED(read_token_rules(body, spec));
  RETURN_IF_REFUSED(read_stream(body, spec));
  RETURN_IF_REFUSED(read_logprobs(body, spec));
  RETURN_IF_REFUSED(check_together(spec));
  return endpoint == Endpoint::kChat ? read_chat(body, spec.chat) : read_prompt(body, spec.prompts);
}

std::optional<ApiError> parse_tokenize(std::string_view text, TokenizeSpec& spec) {
  Json body;
  RETURN_IF_REFUSED(parse_object(text, body));
  RETURN_IF_REFUSED(check_fields(Endpoint::kTokenize, body));
  read(body, "model", spec.model);
  read(body, "add_special_tokens", spec.add_special_tokens);
  read(body, "return_token_strs", spec.return_token_strs);
  const Json* prompt = present(body, "prompt");
  if ((prompt == nullptr) == (present(body, "messages") == nullptr)) {
    return refuse("prompt", "give either 'prompt' or 'messages'");
  }
  if (prompt == nullptr) return read_chat(body, spec.chat.emplace());
  if (!prompt->is_string()) return refuse("prompt", "'prompt' must be a string");
  spec.prompt = prompt->get<std::string>();
  return std::nullopt;
}

std::optional<ApiError> parse_detokenize(std::string_view text, DetokenizeSpec& spec) {
  Json body;
  RETURN_IF_REFUSED(parse_object(text, body));
  RETURN_IF_REFUSED(check_fields(Endpoint::kDetokenize, body));
  read(body, "model", spec.model);
  const Json* tokens = present(body, "tokens");
  if (tokens == nullptr) return refuse("tokens", "'tokens' is required");
  return read_token_ids(*tokens, "tokens", spec.tokens);
}

}  // namespace llm_dist::server
