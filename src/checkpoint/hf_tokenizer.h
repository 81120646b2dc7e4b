// TokenizerSpec from and to the tokenizer files of a Hugging Face directory.
#pragma once

#include <string>

#include "src/base/status.h"
#include "src/base/tokenizer_spec.h"

namespace llm_dist::checkpoint {

// Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja, as far as
// they stand in `directory`; without tokenizer.json the spec's is empty. add_bos stays false: the
// post-processor in tokenizer.json puts the BOS where the model wants one. eos_ids holds the tokenizer's own
// EOS token.
Result<TokenizerSpec> read_hf_tokenizer(const std::string& directory);

// The texts of a tokenizer.json and a tokenizer_config.json for a byte-level BPE vocabulary out of GGUF. For
// a spec that came with a tokenizer.json that text is passed on. kUnimplemented, naming the supported ones,
// for another tokenizer model or pre-tokenizer.
struct TokenizerTexts {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
};
Result<TokenizerTexts> tokenizer_json_from_gguf(const TokenizerSpec& spec);

}  // namespace llm_dist::checkpoint
