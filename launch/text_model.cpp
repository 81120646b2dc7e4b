#include "launch/text_model.h"

#include "src/base/small_file.h"

namespace llm_dist::launch {

Result<TextModel> make_text_model(const checkpoint::Checkpoint& checkpoint, const ModelFlags& flags) {
  TokenizerSpec spec = checkpoint.tokenizer();
  if (!flags.tokenizer.empty()) {
    ASSIGN_OR_RETURN(spec, checkpoint::read_tokenizer(flags.tokenizer));
  }
  if (!flags.chat_template.empty()) {
    Result<std::string> read = read_small_file(flags.chat_template);
    if (!read.ok()) return read.status().with_context("--chat-template");
    spec.chat_template = std::move(*read);
  }
  TextModel model;
  ASSIGN_OR_RETURN(model.tokenizer, text::Tokenizer::create(spec));
  if (!spec.chat_template.empty()) {
    ASSIGN_OR_RETURN(text::ChatTemplate chat_template,
                     text::ChatTemplate::create(spec.chat_template, spec.bos_token, spec.eos_token));
    model.chat_template = std::move(chat_template);
  }
  // Another tokenizer's chat template ends answers with that one's token.
  const checkpoint::ModelConfig& config = checkpoint.config();
  model.eos_ids = config.eos_ids;
  for (int32_t id : spec.eos_ids)
    if (id < config.vocab_size) checkpoint::add_unique(model.eos_ids, id);
  return model;
}

Result<std::string> tokenizer_json_of(const TokenizerSpec& spec) {
  const bool complete = !spec.tokenizer_json.empty() && !spec.replace_post_processor;
  if (complete || (spec.tokenizer_json.empty() && spec.tokens.empty())) return spec.tokenizer_json;
  ASSIGN_OR_RETURN(const auto tokenizer, text::Tokenizer::create(spec));
  return tokenizer->to_json();
}

}  // namespace llm_dist::launch
