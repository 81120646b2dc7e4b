// ChatSession: a conversation on a terminal or through a pipe: reads messages and commands, keeps the
// history, prints answers as they come.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/interrupt_key.h"
#include "launch/line_reader.h"
#include "src/base/status.h"

namespace llm_dist::launch {

// Who answers.
class ChatModel {
 public:
  using OnText = std::function<void(std::string_view)>;
  using Stopped = std::function<bool()>;
  virtual ~ChatModel() = default;
  // `messages_json`: as in a chat completion request. The answer goes to on_text as it comes. `stopped` is
  // asked several times a second; once it says so the answer ends as it is, which is no error.
  virtual Status answer(const std::string& messages_json, const OnText& on_text, const Stopped& stopped) = 0;
};

struct ChatMessage {
  std::string role;
  std::string content;
};

struct ChatTerminal {
  int input_fd = 0;
  bool interactive = false;  // prompts and hints; without: the answers alone
  std::function<void(std::string_view)> print;
  std::function<void(std::string_view)> print_error;
};

class ChatSession {
 public:
  // All outlive it.
  ChatSession(ChatModel& model, InterruptKey& interrupt, ChatTerminal terminal, std::string system_prompt);

  // Until /quit, the end of the input, or a second Ctrl-C; the exit code. Without a terminal the first error
  // ends it, with code 1.
  int run();
  const std::vector<ChatMessage>& history() const { return history_; }

 private:
  enum class Next { kGoOn, kEnd, kFail };
  LineReader::Outcome read_message(std::string& message);
  Next take(const std::string& message);
  Next obey(const std::string& command);
  Next ask(const std::string& question);
  Next on_interrupt();
  void hint(std::string_view text);
  std::string messages_json() const;

  ChatModel& model_;
  InterruptKey& interrupt_;
  ChatTerminal terminal_;
  LineReader reader_;
  std::string system_prompt_;
  std::vector<ChatMessage> history_;  // without the system prompt
  bool interrupted_ = false;          // the last thing that happened was Ctrl-C
};

}  // namespace llm_dist::launch
