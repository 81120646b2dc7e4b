// What rank 0 needs to turn text into tokens and back: tokenizer and chat template of a checkpoint.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/flags.h"
#include "src/checkpoint/checkpoint.h"
#include "src/text/chat_template.h"
#include "src/text/tokenizer.h"

namespace llm_dist::launch {

struct TextModel {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;  // none when the model ships none
  std::vector<int32_t> eos_ids;                     // every id that ends a generation
};

// Of the checkpoint, or of what --tokenizer and --chat-template name.
Result<TextModel> make_text_model(const checkpoint::Checkpoint& checkpoint, const ModelFlags& flags);

// A tokenizer.json that needs no tokenizer_config.json for the same ids; "" where there is no tokenizer.
Result<std::string> tokenizer_json_of(const TokenizerSpec& spec);

}  // namespace llm_dist::launch
