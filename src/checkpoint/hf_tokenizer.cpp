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

Json added_tokens_json(const TokenizerSpec& spec) {
  constexpr int32_t kControl = 3;
  constexpr int32_t kUserDefined = 4;
  Json added = Json::array();
  for (size_t id = 0; id < spec.token_types.size() && id < spec.tokens.size(); ++id) {
    int32_t type = spec.token_types[id];
    if (type != kControl && type != kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", spec.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type == kControl}});
  }
  return added;
}

Json byte_level(bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

Json sequence(Json first, Json second) {
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({std::move(first), std::move(second)})}};
}

Json split(std::string_view regex) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}

// How each GGUF pre-tokenizer name cuts text; the expressions are those of the models' published
// tokenizer.json.
std::optional<Json> pre_tokenizer_json(std::string_view name) {
  if (name == "default" || name == "gpt-2" || name.empty()) return byte_level(true);
  if (name == "smollm") return sequence({{"type", "Digits"}, {"individual_digits", true}}, byte_level(true));
  if (name == "llama-bpe" || name == "llama3" || name == "llama-v3")
    return sequence(
        split(
            R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"),
        byte_level(false));
  if (name == "qwen2")
    return sequence(
        split(
            R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"),
        byte_level(false));
  return std::nullopt;
}

Json post_processor_json(const TokenizerSpec& spec) {
  if (!spec.add_bos || !spec.bos_id || spec.bos_token.empty()) return byte_level(true);
  Json bos = {{"SpecialToken", {{"id", spec.bos_token}, {"type_id", 0}}}};
  Json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  Json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  Json tokens = {
      {spec.bos_token, {{"id", spec.bos_token}, {"ids", {*spec.bos_id}}, {"tokens", {spec.bos_token}}}}};
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({bos, first})},
          {"pair", Json::array({bos, first, bos, second})},
          {"special_tokens", tokens}};
}

Json bpe_json(const TokenizerSpec& spec) {
  Json vocabulary = Json::object();
  for (size_t id = 0; id < spec.tokens.size(); ++id) vocabulary[spec.tokens[id]] = id;
  // Llama 3's vocabulary holds words that no sequence of its merges reaches.
  bool ignore_merges = spec.pre_tokenizer.starts_with("llama");
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", ignore_merges},
          {"vocab", std::move(vocabulary)},
          {"merges", spec.merges}};
}

std::string dump(const Json& json) { return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string tokenizer_config_json(const TokenizerSpec& spec) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false},
                 {"add_bos_token", spec.add_bos}};
  if (!spec.bos_token.empty()) config["bos_token"] = spec.bos_token;
  if (!spec.eos_token.empty()) config["eos_token"] = spec.eos_token;
  if (!spec.chat_template.empty()) config["chat_template"] = spec.chat_template;
  return dump(config);
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

Result<TokenizerTexts> tokenizer_json_from_gguf(const TokenizerSpec& spec) {
  if (!spec.tokenizer_json.empty())
    return TokenizerTexts{.tokenizer_json = spec.tokenizer_json,
                          .tokenizer_config_json = tokenizer_config_json(spec)};
  if (spec.model != "gpt2")
    return unimplemented(format("tokenizer model {}; gpt2 (byte-level BPE) is served", spec.model));
  auto pre_tokenizer = pre_tokenizer_json(spec.pre_tokenizer);
  if (!pre_tokenizer)
    return unimplemented(format("pre-tokenizer {}; default, gpt-2, smollm, llama-bpe and qwen2 are served",
                                spec.pre_tokenizer));
  Json json = {{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", added_tokens_json(spec)},
               {"normalizer", nullptr},
               {"pre_tokenizer", *std::move(pre_tokenizer)},
               {"post_processor", post_processor_json(spec)},
               {"decoder", byte_level(true)},
               {"model", bpe_json(spec)}};
  return TokenizerTexts{.tokenizer_json = dump(json), .tokenizer_config_json = tokenizer_config_json(spec)};
}

}  // namespace llm_dist::checkpoint
