// An OpenAI-compatible server that answers with made-up tokens at set times, for tests of its clients.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "launch/server_access.h"
#include "src/http/server.h"
#include "src/http/sse.h"

namespace llm_dist::launch {

using nlohmann::json;

struct FakeBehaviour {
  std::chrono::milliseconds first_token{0};
  std::chrono::milliseconds between_tokens{0};
  int num_tokens = 4;
  int tokens_a_chunk = 1;
  bool tokenizes = true;
  bool says_usage = true;
  bool ends_properly = true;   // or the connection is cut after the first token
  bool waits_forever = false;  // after the first token, until the server ends
  int refuse_from = -1;        // the completion requests from this one on get a 503
};

class FakeServer {
 public:
  explicit FakeServer(FakeBehaviour behaviour = {}) : behaviour_(behaviour) {
    auto server = http::Server::create(
        {}, [this](const http::Request& request, const auto& writer) { answer(request, writer); });
    EXPECT_TRUE(server.ok()) << server.status().to_string();
    server_ = std::move(*server);
  }
  ~FakeServer() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  ServerAccess access() const { return {.base_url = server_->url(), .headers = {}, .client = {}}; }
  // Of the completion requests, in the order in which they came.
  std::vector<json> bodies() {
    std::lock_guard lock(mutex_);
    return bodies_;
  }

 private:
  using Writer = std::shared_ptr<http::ResponseWriter>;

  void answer(const http::Request& request, const Writer& writer) {
    if (request.path == "/v1/models") {
      writer->send({.body = R"({"object":"list","data":[{"id":"fake-model"}]})"});
    } else if (request.path == "/tokenize" && behaviour_.tokenizes) {
      // One id a blank: distinct, and none beyond 2000.
      json reply;
      std::string text = json::parse(request.body)["prompt"];
      for (size_t i = 0; i < text.size(); ++i)
        if (text[i] == ' ') reply["tokens"].push_back(i % 2000);
      writer->send({.body = reply.dump()});
    } else if (request.path == "/detokenize" && behaviour_.tokenizes) {
      std::string text;
      json tokens = json::parse(request.body)["tokens"];
      for (int id : tokens) text += "t" + std::to_string(id) + " ";
      writer->send({.body = json{{"prompt", text}}.dump()});
    } else if (request.path == "/v1/completions" || request.path == "/v1/chat/completions") {
      complete(request, writer);
    } else {
      writer->send({.status = 404, .body = R"({"error":{"message":"no such path"}})"});
    }
  }

  void complete(const http::Request& request, const Writer& writer) {
    std::lock_guard lock(mutex_);
    bodies_.push_back(json::parse(request.body));
    int number = static_cast<int>(bodies_.size()) - 1;
    if (behaviour_.refuse_from >= 0 && number >= behaviour_.refuse_from) {
      writer->send({.status = 503,
                    .body = R"({"error":{"message":"1024 requests wait already","code":"queue_full"}})"});
      return;
    }
    bool chat = request.path == "/v1/chat/completions";
    threads_.emplace_back([this, writer, chat] { stream(*writer, chat); });
  }

  void stream(http::ResponseWriter& writer, bool chat) {
    std::this_thread::sleep_for(behaviour_.first_token);
    writer.start_stream(200, http::sse_headers());
    if (chat) send(writer, {{"delta", {{"role", "assistant"}, {"content", ""}}}, {"finish_reason", nullptr}});
    for (int i = 0; i < behaviour_.num_tokens; i += behaviour_.tokens_a_chunk) {
      if (i > 0) std::this_thread::sleep_for(behaviour_.between_tokens);
      std::string text = "w" + std::to_string(i) + " ";
      json choice = {{"finish_reason", nullptr}};
      (chat ? choice["delta"]["content"] : choice["text"]) = text;
      send(writer, choice);
      if (!behaviour_.ends_properly) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the first token leaves
        return;                                                      // and the connection is cut
      }
      if (behaviour_.waits_forever) return wait_for_the_end();
    }
    json last = {{"finish_reason", "length"}};
    chat ? last["delta"] = json::object() : last["text"] = "";
    send(writer, last);
    json usage = {{"prompt_tokens", 11}, {"completion_tokens", behaviour_.num_tokens}};
    if (behaviour_.says_usage)
      writer.write(http::sse_event(json{{"choices", json::array()}, {"usage", usage}}.dump()));
    writer.write(http::sse_event("[DONE]"));
    writer.end();
  }

  static void send(http::ResponseWriter& writer, json choice) {
    choice["index"] = 0;
    writer.write(http::sse_event(json{{"choices", json::array({choice})}, {"usage", nullptr}}.dump()));
  }

  void wait_for_the_end() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ending_; });
  }

  FakeBehaviour behaviour_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::vector<json> bodies_;
  std::vector<std::thread> threads_;
  std::unique_ptr<http::Server> server_;  // last: its thread uses the others
};

}  // namespace llm_dist::launch
