// What rank 0 needs to turn text into tokens and back: tokenizer and chat template of a checkpoint.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "src/base/tokenizer_spec.h"
#include "src/text/chat_template.h"
#include "src/text/tokenizer.h"

namespace llm_dist::launch {

struct TextModel {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;  // none when the model ships none
};

Result<TextModel> make_text_model(const TokenizerSpec& spec);

}  // namespace llm_dist::launch
