// LocalChat: answers from an engine of this process. Rank 0 only; the others follow.
#pragma once

#include <memory>

#include "launch/chat_session.h"
#include "launch/rank_process.h"
#include "launch/sampling_flags.h"
#include "launch/text_model.h"
#include "src/engine/engine.h"

namespace llm_dist::launch {

class LocalChat : public ChatModel {
 public:
  // Starts the engine. failed_precondition: the model has no chat template.
  static Result<std::unique_ptr<LocalChat>> create(const SamplingFlags& sampling, RankProcess& process);
  ~LocalChat() override;

  Status answer(const std::string& messages_json, const OnText& on_text, const Stopped& stopped) override;

 private:
  LocalChat(TextModel text, const SamplingFlags& sampling, RankProcess& process);
  Result<sched::SequenceRequest> request_of(const std::string& messages_json) const;

  TextModel text_;
  sched::SamplingParams sampling_;
  int64_t max_model_len_;
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace llm_dist::launch
