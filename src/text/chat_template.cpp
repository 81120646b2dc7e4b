#include "src/text/chat_template.h"

#include <utility>

#include "src/text/ffi_glue.h"

namespace llm_dist::text {

void ChatTemplate::HandleFree::operator()(llm_dist_chat_template* handle) const {
  const ForeignCall foreign;
  llm_dist_chat_template_free(handle);
}

Result<ChatTemplate> ChatTemplate::create(std::string_view jinja,
                                          std::string_view bos_token,
                                          std::string_view eos_token) {
  llm_dist_chat_template* raw = nullptr;
  std::string error;
  const ForeignCall foreign;
  const int32_t code = llm_dist_chat_template_new(
      ffi_bytes(jinja), ffi_bytes(bos_token), ffi_bytes(eos_token), &raw, append_to(error));
  RETURN_IF_ERROR(ffi_status(code, std::move(error)));
  return ChatTemplate(Handle(raw));
}

Result<std::string> ChatTemplate::render(std::string_view messages_json,
                                         const ChatTemplateOptions& options) const {
  const llm_dist_ffi_render_options ffi{.add_generation_prompt = options.add_generation_prompt,
                                        .continue_final_message = options.continue_final_message,
                                        .tools = ffi_bytes(options.tools_json),
                                        .kwargs = ffi_bytes(options.kwargs_json),
                                        .now_unix_s = options.now_unix_s.value_or(-1),
                                        .timeout_ms = static_cast<uint64_t>(options.timeout.count())};
  std::string text;
  std::string error;
  const ForeignCall foreign;
  const int32_t code = llm_dist_chat_template_render(
      handle_.get(), ffi_bytes(messages_json), &ffi, append_to(text), append_to(error));
  RETURN_IF_ERROR(ffi_status(code, std::move(error)));
  return text;
}

bool ChatTemplate::can_render() {
  const ForeignCall foreign;
  return llm_dist_chat_template_can_render();
}

}  // namespace llm_dist::text
