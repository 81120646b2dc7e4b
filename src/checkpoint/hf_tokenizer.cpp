#include "src/checkpoint/hf_tokenizer.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "src/base/json_text.h"
#include "src/base/small_file.h"
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
  auto text = read_small_file(path, kMaxTokenizerBytes);
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

// Classes of transformers 4 that make their post-processor anew from add_bos_token and add_eos_token,
// whatever tokenizer.json holds (update_post_processor in models/*/tokenization_*_fast.py), and what they
// take for granted where tokenizer_config.json is silent.
struct FlaggedClass {
  std::string_view name;  // or with "Fast" behind
  bool add_bos;
  const char* bos_token;
  const char* eos_token;
};
constexpr FlaggedClass kFlaggedClasses[] = {
    {"LlamaTokenizer", true, "<s>", "</s>"},
    {"CodeLlamaTokenizer", true, "<s>", "</s>"},
    {"GemmaTokenizer", true, "<bos>", "<eos>"},
    {"CohereTokenizer", true, "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"},
    {"GPTNeoXTokenizer", false, "<|endoftext|>", "<|endoftext|>"},
};

// nullptr where tokenizer.json decides. So it does in what transformers 5 has saved, which names its
// "backend" and no flags.
const FlaggedClass* flagged_class(const Json& tokenizer_config) {
  if (tokenizer_config.contains("backend")) return nullptr;
  const Json stated = tokenizer_config.value("tokenizer_class", Json());
  std::string name = stated.is_string() ? stated.get<std::string>() : "";
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  auto found = std::ranges::find(kFlaggedClasses, name, &FlaggedClass::name);
  return found == std::end(kFlaggedClasses) ? nullptr : &*found;
}

// null is false, as it is for transformers.
bool flag_of(const Json& tokenizer_config, const char* key, bool absent) {
  auto found = tokenizer_config.find(key);
  if (found == tokenizer_config.end()) return absent;
  return found->is_boolean() && found->get<bool>();
}

// special_tokens_map.json, the older file, goes before a tokenizer_config.json that lists no tokens of its
// own (added_tokens_decoder), as for transformers.
std::string special_token(const Json& tokenizer_config,
                          const Json& special_tokens_map,
                          const char* key,
                          const char* absent) {
  const bool mapped = !tokenizer_config.contains("added_tokens_decoder") && special_tokens_map.contains(key);
  const Json& source = mapped ? special_tokens_map : tokenizer_config;
  return source.contains(key) ? token_text(source, key) : absent;
}

void apply_flags(const Json& tokenizer_config, const FlaggedClass& of_class, TokenizerSpec& spec) {
  spec.replace_post_processor = true;
  spec.add_bos = flag_of(tokenizer_config, "add_bos_token", of_class.add_bos);
  spec.add_eos = flag_of(tokenizer_config, "add_eos_token", false);
}

}  // namespace

Result<TokenizerSpec> read_hf_tokenizer(const std::string& directory) {
  TokenizerSpec spec;
  const std::string path = directory + "/tokenizer.json";
  ASSIGN_OR_RETURN(spec.tokenizer_json, read_optional(path));
  ASSIGN_OR_RETURN(const Json config, parse_optional_object(directory + "/tokenizer_config.json"));
  ASSIGN_OR_RETURN(const Json special, parse_optional_object(directory + "/special_tokens_map.json"));
  const FlaggedClass* flagged = flagged_class(config);
  spec.bos_token = special_token(config, special, "bos_token", flagged != nullptr ? flagged->bos_token : "");
  spec.eos_token = special_token(config, special, "eos_token", flagged != nullptr ? flagged->eos_token : "");
  if (flagged != nullptr) apply_flags(config, *flagged, spec);
  ASSIGN_OR_RETURN(spec.chat_template, read_optional(directory + "/chat_template.jinja"));
  if (spec.chat_template.empty()) spec.chat_template = chat_template_of(config);
  if (spec.tokenizer_json.empty()) return spec;
  ASSIGN_OR_RETURN(const Json added, read_added_tokens(spec.tokenizer_json, path));
  spec.bos_id = id_of(added, spec.bos_token);
  if (auto eos = id_of(added, spec.eos_token)) spec.eos_ids.push_back(*eos);
  return spec;
}

std::string tokenizer_config_json(const TokenizerSpec& spec) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  // Of a tokenizer.json that decides itself they are not known, and other readers would believe them.
  if (spec.tokenizer_json.empty() || spec.replace_post_processor) {
    config["add_bos_token"] = spec.add_bos;
    config["add_eos_token"] = spec.add_eos;
  }
  if (!spec.bos_token.empty()) config["bos_token"] = spec.bos_token;
  if (!spec.eos_token.empty()) config["eos_token"] = spec.eos_token;
  if (!spec.chat_template.empty()) config["chat_template"] = spec.chat_template;
  // Words of a GGUF file need not be UTF-8.
  return config.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace llm_dist::checkpoint
