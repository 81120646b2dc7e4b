// TokenizerSpec from and to the tokenizer files of a Hugging Face directory.
#pragma once

#include <string>

#include "src/base/status.h"
#include "src/base/tokenizer_spec.h"

namespace llm_dist::checkpoint {

// Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja, as far as
// they stand in `directory`; without tokenizer.json the spec's is empty. Its post-processor puts the BOS
// where the model wants one, but for classes of tokenizers whose add_bos_token and add_eos_token replace it.
// eos_ids holds the tokenizer's own EOS token.
Result<TokenizerSpec> read_hf_tokenizer(const std::string& directory);

// The text of a tokenizer_config.json: what a tokenizer.json leaves out. Always UTF-8.
std::string tokenizer_config_json(const TokenizerSpec& spec);

}  // namespace llm_dist::checkpoint
