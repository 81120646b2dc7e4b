// Conversations through a pipe, with a model that the test plays and with a server.
#include <signal.h>
#include <unistd.h>

#include <map>

#include "launch/chat_session.h"
#include "launch/remote_chat.h"
#include "tests/launch/fake_server.h"

namespace llm_dist::launch {
namespace {

// Answers with the number of messages that it was shown, in two pieces.
class CountingModel : public ChatModel {
 public:
  Status answer(const std::string& messages_json, const OnText& on_text, const Stopped& stopped) override {
    seen.push_back(json::parse(messages_json));
    if (fails) return unavailable("the queue is full");
    on_text("saw ");
    while (stops_itself) {
      if (press_key) kill(getpid(), SIGINT);
      if (stopped()) return ok_status();
    }
    on_text(std::to_string(seen.back().size()));
    return ok_status();
  }

  std::vector<json> seen;
  bool fails = false;
  bool stops_itself = false;  // waits until it is told to
  bool press_key = false;
};

class Conversation {
 public:
  explicit Conversation(ChatModel& model) : model_(model) {
    EXPECT_EQ(pipe(pipe_), 0);
    interrupt_.begin();
  }
  ~Conversation() {
    close(pipe_[0]);
    type_end();
  }

  void type(const std::string& text) {
    EXPECT_EQ(write(pipe_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void type_end() {
    if (pipe_[1] >= 0) close(pipe_[1]);
    pipe_[1] = -1;
  }
  int run(bool interactive = false, const std::string& system_prompt = "") {
    ChatTerminal terminal{.input_fd = pipe_[0],
                          .interactive = interactive,
                          .print =
                              [this](std::string_view text) {
                                printed += text;
                                if (text.ends_with("> ")) ++num_prompts;
                              },
                          .print_error = [this](std::string_view text) { errors += text; }};
    return ChatSession(model_, interrupt_, terminal, system_prompt).run();
  }
  // What is typed, to its end.
  int run_with(const std::string& text, bool interactive = false, const std::string& system_prompt = "") {
    type(text);
    type_end();
    return run(interactive, system_prompt);
  }

  std::string printed;
  std::string errors;
  std::atomic<int> num_prompts{0};

 private:
  ChatModel& model_;
  InterruptKey interrupt_;
  int pipe_[2] = {-1, -1};
};

TEST(Chat, APipeGetsTheAnswersAndNothingElse) {
  CountingModel model;
  Conversation conversation(model);
  EXPECT_EQ(conversation.run_with("Hello\n\nAnd then?\r\nno line break"), 0);
  EXPECT_EQ(conversation.printed, "saw 1\nsaw 3\nsaw 5\n");
  EXPECT_EQ(conversation.errors, "");
  ASSERT_EQ(model.seen.size(), 3u);
  json expected = {{{"role", "user"}, {"content", "Hello"}},
                   {{"role", "assistant"}, {"content", "saw 1"}},
                   {{"role", "user"}, {"content", "And then?"}}};
  EXPECT_EQ(model.seen[1], expected);
  EXPECT_EQ(model.seen[2].back()["content"], "no line break");
}

TEST(Chat, ATerminalGetsPromptsAndHints) {
  CountingModel model;
  Conversation conversation(model);
  EXPECT_EQ(conversation.run_with("one\\\ntwo\n/reset\n", true), 0);
  EXPECT_EQ(conversation.printed,
            "/help says what can be typed here\n> … saw 1\n> (the conversation is forgotten)\n> \n");
  EXPECT_EQ(model.seen[0][0]["content"], "one\ntwo");
}

TEST(Chat, CommandsChangeTheConversation) {
  CountingModel model;
  Conversation conversation(model);
  EXPECT_EQ(
      conversation.run_with("a\n/reset\nb\n/system Be brief.\nc\n/system\n//etc is a folder\n/quit\nnever\n",
                            false,
                            "Be kind."),
      0);
  ASSERT_EQ(model.seen.size(), 4u) << "nothing after /quit";
  EXPECT_EQ(model.seen[0][0]["content"], "Be kind.");
  EXPECT_EQ(model.seen[1].size(), 2u) << "the system prompt stays";
  EXPECT_EQ(model.seen[2].size(), 4u);
  EXPECT_EQ(model.seen[2][0], (json{{"role", "system"}, {"content", "Be brief."}}));
  EXPECT_EQ(model.seen[3].back()["content"], "/etc is a folder");
  EXPECT_NE(conversation.printed.find("Be brief.\n"), std::string::npos);
}

TEST(Chat, AnUnknownCommandNamesTheNearest) {
  CountingModel model;
  Conversation conversation(model);
  EXPECT_EQ(conversation.run_with("/rest\nnever\n"), 1);
  EXPECT_EQ(conversation.errors, "/rest is no command; the nearest is /reset");
  EXPECT_TRUE(model.seen.empty());
  Conversation interactive(model);
  EXPECT_EQ(interactive.run_with("/rest\na\n", true), 0) << "a person may try again";
  EXPECT_EQ(model.seen.size(), 1u);
}

TEST(Chat, AFailedQuestionIsNotRemembered) {
  CountingModel model;
  model.fails = true;
  Conversation interactive(model);
  EXPECT_EQ(interactive.run_with("a\nb\n", true), 0);
  ASSERT_EQ(model.seen.size(), 2u);
  EXPECT_EQ(model.seen[1].size(), 1u);
  EXPECT_EQ(interactive.errors, "the queue is fullthe queue is full");
  Conversation through_pipe(model);
  EXPECT_EQ(through_pipe.run_with("a\nb\n"), 1) << "a script must notice";
  EXPECT_EQ(model.seen.size(), 3u);
}

TEST(Chat, BytesThatAreNoTextDoNoHarm) {
  CountingModel model;
  Conversation conversation(model);
  EXPECT_EQ(conversation.run_with("\xff\xfe\n"), 0);
  EXPECT_EQ(model.seen[0][0]["content"], "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Chat, ControlCStopsTheAnswerAndASecondOneEnds) {
  CountingModel model;
  model.stops_itself = model.press_key = true;
  Conversation conversation(model);
  conversation.type("a\n");
  std::thread second([&] {
    while (conversation.num_prompts < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    kill(getpid(), SIGINT);
  });
  EXPECT_EQ(conversation.run(true), 130);
  second.join();
  EXPECT_NE(conversation.printed.find("saw \n> \n"), std::string::npos) << conversation.printed;
}

TEST(Chat, AStoppedAnswerStaysAsFarAsItCame) {
  CountingModel model;
  model.stops_itself = model.press_key = true;
  Conversation conversation(model);
  EXPECT_EQ(conversation.run_with("a\nb\n"), 0) << "one press an answer, and a message between";
  ASSERT_EQ(model.seen.size(), 2u);
  EXPECT_EQ(model.seen[1][1]["content"], "saw ");
}

TEST(RemoteChat, AsksTheServerAndStreams) {
  FakeServer server({.num_tokens = 3});
  RemoteChat chat(server.access(), {.model = "fake-model", .seed = 5, .max_tokens = 9});
  std::vector<std::string> pieces;
  Status status = chat.answer(
      R"([{"role":"user","content":"hi"}])",
      [&](std::string_view text) { pieces.emplace_back(text); },
      [] { return false; });
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(pieces, (std::vector<std::string>{"w0 ", "w1 ", "w2 "}));
  json body = server.bodies().at(0);
  EXPECT_EQ(body["messages"][0]["content"], "hi");
  EXPECT_EQ(body["max_tokens"], 9);
  EXPECT_EQ(body["seed"], 5);
  EXPECT_EQ(body["model"], "fake-model");
  EXPECT_FALSE(body.contains("top_k")) << "not every server knows it";
}

TEST(RemoteChat, SaysWhyThereIsNoAnswer) {
  auto outcome = [](FakeBehaviour behaviour, double timeout) {
    FakeServer server(behaviour);
    RemoteChat chat(server.access(), {.model = "m", .answer_timeout_seconds = timeout});
    return chat.answer("[]", [](std::string_view) {}, [] { return false; });
  };
  EXPECT_EQ(outcome({.refuse_from = 0}, 10).message(), "1024 requests wait already");
  EXPECT_EQ(outcome({.ends_properly = false}, 10).code(), StatusCode::kUnavailable);
  EXPECT_EQ(outcome({.waits_forever = true}, 0.1).code(), StatusCode::kDeadlineExceeded);
}

TEST(RemoteChat, IsStoppedWhileTheServerIsSilent) {
  FakeServer server({.waits_forever = true});
  RemoteChat chat(server.access(), {.model = "m"});
  std::string text;
  TimePoint begin = Clock::now();
  Status status =
      chat.answer("[]", [&](std::string_view piece) { text += piece; }, [&] { return !text.empty(); });
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(text, "w0 ");
  EXPECT_LT(seconds_between(begin, Clock::now()), 60);
}

}  // namespace
}  // namespace llm_dist::launch
