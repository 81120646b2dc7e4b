#include "launch/chat_session.h"

#include <signal.h>

#include <nlohmann/json.hpp>

#include "launch/exit_code.h"
#include "src/base/format.h"
#include "src/base/nearest.h"

namespace llm_dist::launch {
namespace {

using nlohmann::json;

constexpr std::string_view kCommands[] = {"/help", "/quit", "/reset", "/system"};
constexpr std::string_view kHelp =
    "/reset         forget the conversation\n"
    "/system TEXT   set the system prompt, without TEXT: show it\n"
    "/help          this\n"
    "/quit          end; so does Ctrl-D\n"
    "A \\ at the end of a line goes on with the message in the next line. A message that begins with / is\n"
    "written with //. Ctrl-C stops an answer; a second one ends.\n";

}  // namespace

ChatSession::ChatSession(ChatModel& model,
                         InterruptKey& interrupt,
                         ChatTerminal terminal,
                         std::string system_prompt)
    : model_(model),
      interrupt_(interrupt),
      terminal_(std::move(terminal)),
      reader_(terminal_.input_fd, interrupt.fd()),
      system_prompt_(std::move(system_prompt)) {}

int ChatSession::run() {
  hint("/help says what can be typed here\n");
  while (true) {
    std::string message;
    LineReader::Outcome outcome = read_message(message);
    if (outcome == LineReader::Outcome::kEnd) {
      hint("\n");
      return 0;
    }
    Next next = outcome == LineReader::Outcome::kInterrupted ? on_interrupt() : take(message);
    if (next == Next::kFail) return 1;
    if (next == Next::kEnd) return interrupted_ ? kSignalExitBase + SIGINT : 0;
  }
}

void ChatSession::hint(std::string_view text) {
  if (terminal_.interactive) terminal_.print(text);
}

LineReader::Outcome ChatSession::read_message(std::string& message) {
  hint("> ");
  std::string line;
  while (true) {
    LineReader::Outcome outcome = reader_.read(line);
    if (outcome == LineReader::Outcome::kEnd && !message.empty()) return LineReader::Outcome::kLine;
    if (outcome != LineReader::Outcome::kLine) return outcome;
    if (!line.ends_with('\\')) break;
    line.back() = '\n';
    message += line;
    hint("… ");
  }
  message += line;
  return LineReader::Outcome::kLine;
}

ChatSession::Next ChatSession::on_interrupt() {
  interrupt_.take();
  hint("\n");
  if (interrupted_) return Next::kEnd;
  interrupted_ = true;
  hint("(Ctrl-C again, or /quit, ends)\n");
  return Next::kGoOn;
}

ChatSession::Next ChatSession::take(const std::string& message) {
  interrupted_ = false;
  if (message.find_first_not_of(" \t\n") == std::string::npos) return Next::kGoOn;
  if (message.starts_with("//")) return ask(message.substr(1));
  return message.starts_with('/') ? obey(message) : ask(message);
}

ChatSession::Next ChatSession::obey(const std::string& command) {
  size_t blank = command.find_first_of(" \t\n");
  std::string word = command.substr(0, blank);
  size_t rest = blank == std::string::npos ? blank : command.find_first_not_of(" \t\n", blank);
  if (word == "/quit") return Next::kEnd;
  if (word == "/help") {
    terminal_.print(kHelp);
  } else if (word == "/reset") {
    history_.clear();
    hint("(the conversation is forgotten)\n");
  } else if (word == "/system" && rest != std::string::npos) {
    system_prompt_ = command.substr(rest);
    hint("(the system prompt is set)\n");
  } else if (word == "/system") {
    terminal_.print(system_prompt_ + "\n");
  } else {
    terminal_.print_error(format("{} is no command; the nearest is {}", word, nearest_word(word, kCommands)));
    return terminal_.interactive ? Next::kGoOn : Next::kFail;
  }
  return Next::kGoOn;
}

std::string ChatSession::messages_json() const {
  json messages = json::array();
  if (!system_prompt_.empty()) messages.push_back({{"role", "system"}, {"content", system_prompt_}});
  for (const ChatMessage& message : history_)
    messages.push_back({{"role", message.role}, {"content", message.content}});
  // What is no UTF-8 becomes U+FFFD.
  return messages.dump(-1, ' ', false, json::error_handler_t::replace);
}

ChatSession::Next ChatSession::ask(const std::string& question) {
  history_.push_back({"user", question});
  std::string answer;
  Status status = model_.answer(
      messages_json(),
      [&](std::string_view text) {
        answer += text;
        terminal_.print(text);
      },
      [&] { return interrupted_ = interrupted_ || interrupt_.take(); });
  if (!answer.empty() || status.ok()) terminal_.print("\n");
  // A stopped answer stays, as far as it came; a question that got none does not.
  if (answer.empty()) {
    history_.pop_back();
  } else {
    history_.push_back({"assistant", answer});
  }
  if (status.ok()) return Next::kGoOn;
  terminal_.print_error(status.message());
  return terminal_.interactive ? Next::kGoOn : Next::kFail;
}

}  // namespace llm_dist::launch
