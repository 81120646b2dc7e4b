// RemoteChat: answers from an OpenAI-compatible server.
#pragma once

#include <optional>
#include <string>

#include "launch/chat_session.h"
#include "launch/server_access.h"
#include "src/http/async_client.h"

namespace llm_dist::launch {

struct RemoteChatOptions {
  std::string model;
  double temperature = 0;
  double top_p = 1;
  int32_t top_k = 0;  // 0: not sent, since not every server knows it
  uint64_t seed = 0;
  std::optional<int32_t> max_tokens;  // or as many as the server grants
  double answer_timeout_seconds = 600;
};

class RemoteChat : public ChatModel {
 public:
  RemoteChat(ServerAccess server, RemoteChatOptions options)
      : server_(std::move(server)), options_(std::move(options)), client_(server_.client) {}
  Status answer(const std::string& messages_json, const OnText& on_text, const Stopped& stopped) override;

 private:
  std::string request_body(const std::string& messages_json) const;

  ServerAccess server_;
  RemoteChatOptions options_;
  http::AsyncClient client_;
};

}  // namespace llm_dist::launch
