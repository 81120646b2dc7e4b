#include "tests/server/server_fixture.h"

namespace llm_dist::server {

std::vector<int32_t> byte_ids(std::string_view text) {
  std::vector<int32_t> ids;
  for (char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::vector<int32_t> script(std::string_view text) {
  std::vector<int32_t> ids = byte_ids(text);
  ids.push_back(-1);
  return ids;
}

std::string Stream::text(int choice) const {
  std::string text;
  for (const Json& chunk : chunks) {
    for (const Json& one : chunk.at("choices")) {
      if (one.at("index") != choice) continue;
      text += one.contains("text") ? one.at("text").get<std::string>() : one.at("delta").value("content", "");
    }
  }
  return text;
}

std::string Stream::finish_reason(int choice) const {
  std::string reason;
  for (const Json& chunk : chunks) {
    for (const Json& one : chunk.at("choices")) {
      if (one.at("index") == choice && !one.at("finish_reason").is_null()) {
        reason += one.at("finish_reason").get<std::string>();
      }
    }
  }
  return reason;
}

void ServerFixture::start_loading(ServerOptions options) {
  server.reset();
  options.port = 0;
  auto started = ApiServer::start(options);
  ASSERT_TRUE(started.ok()) << started.status().to_string();
  server = std::move(started).value();
}

void ServerFixture::attach(bool with_template) {
  auto made = text::Tokenizer::create(vocabulary);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  tokenizer = std::move(made).value();
  auto jinja = text::ChatTemplate::create(template_source, "<s>", "<|end|>");
  ASSERT_TRUE(jinja.ok()) << jinja.status().to_string();
  chat_template.emplace(std::move(jinja).value());
  ModelInfo info;
  info.served_names = {"tiny", "owner/tiny"};
  info.max_model_len = max_model_len;
  info.vocab_size = vocab_size.value_or(tokenizer->vocab_size());
  info.eos_ids = tokenizer->eos_ids();
  info.defaults.top_k = 40;
  server->attach(*engine, *tokenizer, with_template ? &*chat_template : nullptr, info);
}

http::Response ServerFixture::get(const std::string& path, const http::Headers& headers) {
  auto response = http::request({.url = server->url() + path, .headers = headers}, soon());
  EXPECT_TRUE(response.ok()) << response.status().to_string();
  return response.ok() ? *response : http::Response{.status = 0};
}

http::Response ServerFixture::post(const std::string& path,
                                   const std::string& body,
                                   const http::Headers& headers) {
  auto response = http::request(
      {.method = "POST", .url = server->url() + path, .headers = headers, .body = body}, soon());
  EXPECT_TRUE(response.ok()) << response.status().to_string();
  return response.ok() ? *response : http::Response{.status = 0};
}

Json ServerFixture::post_ok(const std::string& path, const Json& body) {
  http::Response response = post(path, body);
  EXPECT_EQ(response.status, 200) << response.body;
  return Json::parse(response.body);
}

Stream ServerFixture::stream(const std::string& path, Json body) {
  body["stream"] = true;
  Stream stream;
  http::Client client;
  auto response = client.stream_events({.method = "POST", .url = server->url() + path, .body = body.dump()},
                                       soon(),
                                       [&](const http::SseEvent& event) {
                                         EXPECT_FALSE(stream.done) << "an event after [DONE]: " << event.data;
                                         stream.done = event.data == "[DONE]";
                                         if (!stream.done) stream.chunks.push_back(Json::parse(event.data));
                                         return true;
                                       });
  EXPECT_TRUE(response.ok()) << response.status().to_string();
  if (response.ok()) stream.status = response->status;
  return stream;
}

}  // namespace llm_dist::server
