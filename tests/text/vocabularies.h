// Vocabularies for the tests: SmolLM2's out of its GGUF file, and small ones made here.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/tokenizer_spec.h"

namespace llm_dist::text {

inline std::string utf8(uint32_t code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  if (code < 0x800) return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
  return {static_cast<char>(0xE0 | (code >> 12)),
          static_cast<char>(0x80 | ((code >> 6) & 63)),
          static_cast<char>(0x80 | (code & 63))};
}

// GPT-2's character for each byte, written down independently of the code under test: id = byte.
inline std::vector<std::string> byte_alphabet() {
  std::vector<std::string> names(256);
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    names[b] = utf8(printable ? b : next++);
  }
  return names;
}

// 256 single bytes, then one token for each merge, then the control tokens "<s>" and "<|end|>".
inline TokenizerSpec byte_vocabulary(const std::string& pre_tokenizer,
                                     const std::vector<std::pair<std::string, std::string>>& merges) {
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre_tokenizer = pre_tokenizer;
  spec.tokens = byte_alphabet();
  for (const auto& [left, right] : merges) {
    spec.tokens.push_back(left + right);
    spec.merges.push_back(left + " " + right);
  }
  spec.token_types.assign(spec.tokens.size(), 1);
  for (const char* control : {"<s>", "<|end|>"}) {
    spec.tokens.emplace_back(control);
    spec.token_types.push_back(3);
  }
  spec.bos_id = static_cast<int32_t>(spec.tokens.size()) - 2;
  spec.eos_ids = {*spec.bos_id + 1};
  return spec;
}

// The tokenizer.json that a Hugging Face directory would hold for byte_vocabulary("gpt-2", …): with a
// truncation and a padding left over from training, as real files have.
inline TokenizerSpec as_tokenizer_json(const TokenizerSpec& gguf) {
  const auto quoted = [](const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    return out + '"';
  };
  std::string vocab;
  std::string added;
  std::string merges;
  for (size_t id = 0; id < gguf.tokens.size(); ++id) {
    const std::string number = std::to_string(id);
    vocab += (id == 0 ? "" : ",") + quoted(gguf.tokens[id]) + ":" + number;
    if (gguf.token_types[id] != 3) continue;
    added += std::string(added.empty() ? "" : ",") + "{\"id\":" + number +
             ",\"content\":" + quoted(gguf.tokens[id]) +
             R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true})";
  }
  for (const std::string& merge : gguf.merges) merges += (merges.empty() ? "" : ",") + quoted(merge);
  TokenizerSpec spec;
  spec.tokenizer_json =
      R"({"version":"1.0","truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},)"
      R"("padding":{"strategy":{"Fixed":9},"direction":"Right","pad_to_multiple_of":null,"pad_id":0,)"
      R"("pad_type_id":0,"pad_token":"x"},"added_tokens":[)" +
      added + R"(],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,)" +
      R"("trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel",)" +
      R"("add_prefix_space":true,"trim_offsets":true,"use_regex":true},"model":{"type":"BPE","vocab":{)" +
      vocab + "},\"merges\":[" + merges + "]}}";
  return spec;
}

// A tokenizer.json like Llama 2's: "▁" for space, bytes as "<0xE2>". Ids: 0 <unk>, 1 <s>, 2 </s>, 3…258
// bytes, then "▁" and the letters a, b, c, "é".
inline TokenizerSpec metaspace_vocabulary() {
  std::string vocab = R"("<unk>":0,"<s>":1,"</s>":2)";
  constexpr std::string_view kHex = "0123456789ABCDEF";
  for (int b = 0; b < 256; ++b) {
    vocab += std::string(",\"<0x") + kHex[b / 16] + kHex[b % 16] + ">\":" + std::to_string(3 + b);
  }
  vocab += ",\"\u2581\":259,\"a\":260,\"b\":261,\"c\":262,\"\u00e9\":263,\"\u2581a\":264";
  const auto added = [](int id, const std::string& text) {
    return "{\"id\":" + std::to_string(id) + ",\"content\":\"" + text +
           R"(","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true})";
  };
  TokenizerSpec spec;
  spec.tokenizer_json =
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" + added(0, "<unk>") + "," +
      added(1, "<s>") + "," + added(2, "</s>") +
      R"(],"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},)"
      R"({"type":"Replace","pattern":{"String":" "},"content":"▁"}]},"pre_tokenizer":null,)"
      R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)"
      R"({"Sequence":{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},)"
      R"({"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]}}},)"
      R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},)"
      R"({"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},)"
      R"("model":{"type":"BPE","dropout":null,"unk_token":"<unk>","continuing_subword_prefix":null,)"
      R"("end_of_word_suffix":null,"fuse_unk":true,"byte_fallback":true,"vocab":{)" +
      vocab + "},\"merges\":[\"▁ a\"]}}";
  return spec;
}

// Reads the metadata of a GGUF v3 file, as far as a vocabulary needs it.
class GgufVocabulary {
 public:
  explicit GgufVocabulary(const std::string& path) : in_(path, std::ios::binary) {}

  std::optional<TokenizerSpec> read() {
    if (!in_ || take<uint32_t>() != 0x46554747) return std::nullopt;
    take<uint32_t>();
    take<uint64_t>();
    for (auto left = take<uint64_t>(); left > 0 && in_; --left) read_entry();
    return in_ ? std::optional(spec_) : std::nullopt;
  }

 private:
  static constexpr uint32_t kString = 8;
  static constexpr uint32_t kArray = 9;

  template <typename T>
  T take() {
    T value{};
    in_.read(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  std::string take_string() {
    std::string text(take<uint64_t>(), '\0');
    in_.read(text.data(), static_cast<std::streamsize>(text.size()));
    return text;
  }
  void skip_scalar(uint32_t type) {
    constexpr std::array<int, 13> kSize{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    in_.ignore(kSize.at(type));
  }
  void read_entry() {
    const std::string key = take_string();
    const auto type = take<uint32_t>();
    if (type == kString) return store(key, take_string());
    if (type != kArray) return skip_scalar(type);
    const auto element = take<uint32_t>();
    for (auto left = take<uint64_t>(); left > 0 && in_; --left) {
      if (element == kString) {
        store(key, take_string());
      } else if (key == "tokenizer.ggml.token_type") {
        spec_.token_types.push_back(take<int32_t>());
      } else {
        skip_scalar(element);
      }
    }
  }
  void store(const std::string& key, std::string value) {
    if (key == "tokenizer.ggml.model")
      spec_.model = std::move(value);
    else if (key == "tokenizer.ggml.pre")
      spec_.pre_tokenizer = std::move(value);
    else if (key == "tokenizer.ggml.tokens")
      spec_.tokens.push_back(std::move(value));
    else if (key == "tokenizer.ggml.merges")
      spec_.merges.push_back(std::move(value));
    else if (key == "tokenizer.chat_template")
      spec_.chat_template = std::move(value);
  }

  std::ifstream in_;
  TokenizerSpec spec_;
};

inline std::optional<TokenizerSpec> smollm2_vocabulary() {
  return GgufVocabulary(LLM_DIST_SOURCE_DIR "/.models/SmolLM2-135M-Instruct.Q4_1.gguf").read();
}

}  // namespace llm_dist::text
