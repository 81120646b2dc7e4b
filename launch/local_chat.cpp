#include "launch/local_chat.h"

#include <algorithm>

#include "launch/local_text.h"
#include "src/text/detokenizer.h"

namespace llm_dist::launch {
namespace {
constexpr auto kLookEvery = std::chrono::milliseconds(50);
}

LocalChat::LocalChat(TextModel text, const SamplingFlags& sampling, RankProcess& process)
    : text_(std::move(text)),
      sampling_(sampling_of(sampling, text_.eos_ids)),
      max_model_len_(process.engine().options().max_model_len),
      engine_(engine::Engine::start(
          process.engine(), process.channel(), {}, process.hooks(), [&process](const Status& cause) {
            process.give_up(cause);
          })) {}

LocalChat::~LocalChat() { engine_->stop(); }

Result<std::unique_ptr<LocalChat>> LocalChat::create(const SamplingFlags& sampling, RankProcess& process) {
  TextModel text = process.take_text();
  if (!text.chat_template)
    return failed_precondition(
        "the model has no chat template: name one with --chat-template, or use generate");
  return std::unique_ptr<LocalChat>(new LocalChat(std::move(text), sampling, process));
}

Result<sched::SequenceRequest> LocalChat::request_of(const std::string& messages_json) const {
  ASSIGN_OR_RETURN(std::string prompt, text_.chat_template->render(messages_json));
  sched::SequenceRequest request{.sampling = sampling_};
  ASSIGN_OR_RETURN(request.prompt, text_.tokenizer->encode(prompt, {.add_special_tokens = false}));
  int64_t room = max_model_len_ - static_cast<int64_t>(request.prompt.size());
  if (room < 1)
    return invalid_argument(
        format("the conversation has {} tokens, and the model takes {}: /reset forgets it",
               request.prompt.size(),
               max_model_len_));
  request.sampling.max_tokens = static_cast<int32_t>(std::min<int64_t>(sampling_.max_tokens, room));
  request.arrival = Clock::now();
  return request;
}

Status LocalChat::answer(const std::string& messages_json, const OnText& on_text, const Stopped& stopped) {
  ASSIGN_OR_RETURN(sched::SequenceRequest request, request_of(messages_json));
  auto sequence = std::make_shared<LocalSequence>();
  ASSIGN_OR_RETURN(sched::SequenceId id, engine_->submit(std::move(request), sequence));
  text::Detokenizer detokenizer(*text_.tokenizer, true);
  size_t known = 0;
  bool ended = false;
  while (!ended) {
    // Before its tokens: all of them are there once it has ended.
    ended = sequence->wait_for_more(known, kLookEvery);
    for (int32_t token : sequence->tokens_after(known)) {
      ++known;
      on_text(detokenizer.push(token));
    }
    if (ended || !stopped()) continue;
    engine_->cancel(id);
    return ok_status();
  }
  on_text(detokenizer.flush());
  return sequence->wait();
}

}  // namespace llm_dist::launch
