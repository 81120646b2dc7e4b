// ChatTemplate: a conversation to the prompt that the model was trained on (Jinja, as Hugging Face runs it).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"

struct llm_dist_chat_template;

namespace llm_dist::text {

struct ChatTemplateOptions {
  bool add_generation_prompt = true;
  // The prompt ends inside the last message, which the model goes on with. Excludes add_generation_prompt.
  bool continue_final_message = false;
  std::string_view tools_json{};        // array, or empty
  std::string_view kwargs_json{};       // object of further template variables, or empty
  std::optional<int64_t> now_unix_s{};  // what strftime_now prints; the present when unset
  std::chrono::milliseconds timeout{5000};
};

// A template is not trusted: instructions, recursion, output, memory and time are bounded. Immutable after
// create(); render() may run on several threads at once, each on a short-lived thread of its own. A render
// that outlasts its time goes on there, to a bounded end; while more than a few of them in a process do,
// nothing else is rendered. One that uses up its memory keeps that and its thread; after a few of them
// nothing is rendered any more. The number of a request's JSON values is bounded here, so that they alone
// cannot do that; its bytes, of which a template may make lists, are for the caller to bound.
class ChatTemplate {
 public:
  // kInvalidArgument: the template does not parse (with the line).
  static Result<ChatTemplate> create(std::string_view jinja,
                                     std::string_view bos_token,
                                     std::string_view eos_token);

  // `messages_json`: array of {"role", "content", …}, passed to the template as it is. kInvalidArgument: bad
  // JSON, a refusal by the template (its own text), or a bound exceeded. kDeadlineExceeded: the timeout.
  // kUnavailable: too many that outlasted theirs still run, or !can_render().
  Result<std::string> render(std::string_view messages_json, const ChatTemplateOptions& options = {}) const;

  // False for good once nothing is rendered any more in this process.
  static bool can_render();

 private:
  struct HandleFree {
    void operator()(llm_dist_chat_template* handle) const;
  };
  using Handle = std::unique_ptr<llm_dist_chat_template, HandleFree>;

  explicit ChatTemplate(Handle handle) : handle_(std::move(handle)) {}

  Handle handle_;
};

}  // namespace llm_dist::text
