#include "launch/text_model.h"

namespace llm_dist::launch {

Result<TextModel> make_text_model(const TokenizerSpec& spec) {
  TextModel model;
  ASSIGN_OR_RETURN(model.tokenizer, text::Tokenizer::create(spec));
  if (!spec.chat_template.empty()) {
    ASSIGN_OR_RETURN(text::ChatTemplate chat_template,
                     text::ChatTemplate::create(spec.chat_template, spec.bos_token, spec.eos_token));
    model.chat_template = std::move(chat_template);
  }
  return model;
}

}  // namespace llm_dist::launch
