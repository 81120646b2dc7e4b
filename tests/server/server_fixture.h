// A served byte-level model of 258 tokens with a fake engine behind it, and short ways to talk to it.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/http/client.h"
#include "src/server/api_server.h"
#include "tests/server/fake_engine.h"
#include "tests/text/vocabularies.h"

namespace llm_dist::server {

using Json = nlohmann::json;

// The ids of a text in the byte-level vocabulary: its bytes.
std::vector<int32_t> byte_ids(std::string_view text);
// A script: the text, then the end token.
std::vector<int32_t> script(std::string_view text);

struct Stream {
  int status = 0;
  std::vector<Json> chunks;
  bool done = false;  // "[DONE]" came, and came last
  std::string text(int choice = 0) const;
  std::string finish_reason(int choice = 0) const;
};

class ServerFixture : public ::testing::Test {
 protected:
  static constexpr int64_t kMaxModelLen = 512;

  void SetUp() override { start({}); }
  void TearDown() override { server.reset(); }

  // Replaces the running server, not attached yet.
  void start_loading(ServerOptions options);
  void attach(bool with_template = true);
  void start(ServerOptions options) {
    start_loading(std::move(options));
    attach();
  }

  http::Response get(const std::string& path, const http::Headers& headers = {});
  http::Response post(const std::string& path, const std::string& body, const http::Headers& headers = {});
  http::Response post(const std::string& path, const Json& body) { return post(path, body.dump()); }
  Json post_ok(const std::string& path, const Json& body);
  Stream stream(const std::string& path, Json body);

  // Longer than any machine is busy with something else.
  static Deadline soon() { return Deadline::after_seconds(60); }
  // Waits until soon().
  template <typename Condition>
  static bool eventually(Condition condition) {
    Deadline deadline = soon();
    while (!condition()) {
      if (deadline.expired()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  static Json chat(const std::string& content) {
    Json message = {{"role", "user"}, {"content", content}};
    return {{"model", "tiny"}, {"messages", Json::array({message})}};
  }
  static Json completion(const std::string& prompt) {
    return {{"model", "tiny"}, {"prompt", prompt}, {"max_tokens", 100}};
  }

  // Of attach().
  int64_t max_model_len = kMaxModelLen;
  std::optional<int64_t> vocab_size;  // the tokenizer's unless set
  TokenizerSpec vocabulary = text::byte_vocabulary("gpt-2", {});
  std::string template_source =
      "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
      "{% if add_generation_prompt %}assistant: {% endif %}{{ suffix }}";
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;
  std::unique_ptr<FakeEngine> engine = std::make_unique<FakeEngine>();
  std::unique_ptr<ApiServer> server;
};

}  // namespace llm_dist::server
