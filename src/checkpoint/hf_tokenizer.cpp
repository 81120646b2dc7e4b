#include "src/checkpoint/hf_tokenizer.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "src/base/json_text.h"
#include "src/checkpoint/file.h"
#include "src/checkpoint/model_config.h"

namespace llm_dist::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;

Status check_depth(std::string_view text, const std::string& path) {
  if (!json_is_too_deep(text)) return ok_status();
  return data_loss(format("{}: nested deeper than {} levels", path, kMaxJsonDepth));
}

// "" where there is no such file.
Result<std::string> read_optional(const std::string& path) {
  auto text = read_text_file(path, kMaxTokenizerBytes);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) return std::string();
  return text;
}

Result<Json> parse_optional_object(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, read_optional(path));
  if (text.empty()) return Json(Json::object());
  RETURN_IF_ERROR(check_depth(text, path));
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return data_loss(format("{}: not a JSON object", path));
  return json;
}

// A special token stands as a string or as {"content": string, …}.
std::string token_text(const Json& object, const char* key) {
  auto found = object.find(key);
  if (found == object.end()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_object()) return {};
  auto content = found->find("content");
  return content != found->end() && content->is_string() ? content->get<std::string>() : std::string();
}

// One template, or a list of {name, template} of which "default" is meant.
std::string chat_template_of(const Json& tokenizer_config) {
  auto found = tokenizer_config.find("chat_template");
  if (found == tokenizer_config.end()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return {};
  std::string chosen;
  for (const Json& item : *found) {
    if (!item.is_object() || !item.contains("template") || !item["template"].is_string()) continue;
    bool is_default = item.value("name", Json()) == "default";
    if (chosen.empty() || is_default) chosen = item["template"].get<std::string>();
    if (is_default) break;
  }
  return chosen;
}

// added_tokens only: the vocabulary beside them is megabytes and text's business.
Result<Json> read_added_tokens(const std::string& tokenizer_json, const std::string& path) {
  auto keep = [](int depth, Json::parse_event_t event, Json& parsed) {
    return !(depth == 1 && event == Json::parse_event_t::key && parsed != "added_tokens");
  };
  RETURN_IF_ERROR(check_depth(tokenizer_json, path));
  Json json = Json::parse(tokenizer_json, keep, false);
  if (!json.is_object()) return data_loss(format("{}: not a JSON object", path));
  return json.value("added_tokens", Json::array());
}

std::optional<int32_t> id_of(const Json& added_tokens, const std::string& content) {
  if (content.empty() || !added_tokens.is_array()) return std::nullopt;
  for (const Json& token : added_tokens) {
    if (!token.is_object() || token.value("content", Json()) != content) continue;
    Json id = token.value("id", Json());
    if (id.is_number_unsigned() && id.get<uint64_t>() <= std::numeric_limits<int32_t>::max())
      return id.get<int32_t>();
  }
  return std::nullopt;
}

}  // namespace

Result<TokenizerSpec> read_hf_tokenizer(const std::string& directory) {
  TokenizerSpec spec;
  const std::string path = directory + "/tokenizer.json";
  ASSIGN_OR_RETURN(spec.tokenizer_json, read_optional(path));
  ASSIGN_OR_RETURN(const Json config, parse_optional_object(directory + "/tokenizer_config.json"));
  ASSIGN_OR_RETURN(const Json special, parse_optional_object(directory + "/special_tokens_map.json"));
  spec.bos_token = token_text(config.contains("bos_token") ? config : special, "bos_token");
  spec.eos_token = token_text(config.contains("eos_token") ? config : special, "eos_token");
  ASSIGN_OR_RETURN(spec.chat_template, read_optional(directory + "/chat_template.jinja"));
  if (spec.chat_template.empty()) spec.chat_template = chat_template_of(config);
  if (spec.tokenizer_json.empty()) return spec;
  ASSIGN_OR_RETURN(const Json added, read_added_tokens(spec.tokenizer_json, path));
  spec.bos_id = id_of(added, spec.bos_token);
  if (auto eos = id_of(added, spec.eos_token)) spec.eos_ids.push_back(*eos);
  return spec;
}

std::string tokenizer_config_json(const TokenizerSpec& spec) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false},
                 {"add_bos_token", spec.add_bos}};
  if (!spec.bos_token.empty()) config["bos_token"] = spec.bos_token;
  if (!spec.eos_token.empty()) config["eos_token"] = spec.eos_token;
  if (!spec.chat_template.empty()) config["chat_template"] = spec.chat_template;
  // Words of a GGUF file need not be UTF-8.
  return config.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace llm_dist::checkpoint
