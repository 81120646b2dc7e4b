// TokenizerSpec: everything that checkpoint found about a tokenizer and text needs to build it. Plain data,
// so that neither folder includes the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace llm_dist {

struct TokenizerSpec {
  // Either the text of a Hugging Face tokenizer.json …
  std::string tokenizer_json;
  // … or, from GGUF, a byte-level BPE vocabulary (when tokenizer_json is empty).
  std::string model;                 // GGUF tokenizer.ggml.model: "gpt2"
  std::string pre_tokenizer;         // GGUF tokenizer.ggml.pre: "smollm", "llama-bpe", "default", …
  std::vector<std::string> tokens;   // index = id
  std::vector<int32_t> token_types;  // GGUF: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<std::string> merges;   // "a b", best first

  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;  // every id that ends a generation
  // What stands around a text that asks for special tokens. A tokenizer.json says it itself, in its
  // post-processor, unless that is to be replaced.
  bool add_bos = false;
  bool add_eos = false;
  bool replace_post_processor = false;
  std::string bos_token;
  std::string eos_token;
  std::string chat_template;  // Jinja; empty when the model has none
};

}  // namespace llm_dist
