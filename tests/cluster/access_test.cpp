// Keys and their scopes, and every route of the coordinator against every credential, as routes.json has it.
#include "cluster/api/access.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "cluster/coordinator.h"
#include "src/base/format.h"
#include "src/http/client.h"
#include "src/http/digest.h"
#include "tests/cluster/store_fixture.h"
#include "tests/http/raw_client.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;
using Names = std::set<std::pair<std::string, std::string>>;  // method, path

TEST(AccessKey, IsAKeyAndItsScopes) {
  AccessKey all = parse_access_key("secret").value();
  EXPECT_EQ(all.digest, http::sha256_hex("secret"));
  EXPECT_EQ(all.scopes, 7u);
  EXPECT_EQ(parse_access_key("secret \t metrics").value().scopes, 1u);
  EXPECT_EQ(parse_access_key("secret write,read").value().scopes, 6u);
  AccessKey hashed = parse_access_key("sha256:" + http::sha256_hex("secret") + " read").value();
  EXPECT_EQ(hashed.digest, all.digest);
  EXPECT_EQ(hashed.scopes, 2u);
  for (const char* bad :
       {"", "k\xc3\xa4y", "k read,", "k ,read", "k read write", "k reed", "sha256:abc", "sha256:"}) {
    EXPECT_EQ(parse_access_key(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_NE(parse_access_key("k reed").status().message().find("'read'"), std::string::npos);
}

TEST(AccessKey, FilesHoldOneALine) {
  testing::TemporaryFolder folder;
  unsetenv("LLM_DIST_API_KEY");
  EXPECT_TRUE(accepted_access_keys("").value().empty());
  std::ofstream(folder.file("keys")) << "# all\none\n\n  two read \r\n";
  EXPECT_EQ(accepted_access_keys(folder.file("keys")).value().at(1).scopes, 2u);
  std::ofstream(folder.file("keys")) << "one\ntwo reed\n";
  Status status = accepted_access_keys(folder.file("keys")).status();
  EXPECT_NE(status.message().find("line 2: 'reed' is no scope"), std::string::npos) << status.message();
  EXPECT_EQ(accepted_access_keys(folder.file("none")).status().code(), StatusCode::kNotFound);
  setenv("LLM_DIST_API_KEY", "secret", 1);
  EXPECT_EQ(accepted_access_keys("").value().at(0).scopes, 7u);
  unsetenv("LLM_DIST_API_KEY");
}

class CoordinatorAccess : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(LLM_DIST_SOURCE_DIR "/tests/cluster/routes.json");
    table_ = json::parse(file);
    std::ofstream(folder_.file("models.json")) << R"({"models":{"m":{"path":"/nowhere.gguf"}}})";
    CoordinatorOptions options{.store_path = folder_.file("store"),
                               .catalogue_file = folder_.file("models.json"),
                               .program = "/bin/false",
                               .version = "1"};
    options.port = 0;
    for (const auto& [scopes, list] : table_.at("keys").items()) {
      options.api_keys.push_back(parse_access_key(key_of(scopes) + " " + scopes).value());
    }
    start(options);
    options_ = options;
  }
  void start(const CoordinatorOptions& options) {
    coordinator_.reset();
    coordinator_ = std::move(Coordinator::start(options)).value();
  }
  static std::string key_of(const std::string& scopes) { return "key-of-" + scopes; }
  http::Response send(const json& route, const char* key) {
    std::string path = route.value("as", route.at("path").get<std::string>());
    http::Headers headers;
    if (key != nullptr) headers.add("Authorization", std::string("Bearer ") + key);
    auto response =
        http::request({.method = route.at("method"), .url = coordinator_->url() + path, .headers = headers},
                      Deadline::after_seconds(30));
    EXPECT_TRUE(response.ok()) << response.status().to_string();
    return response.ok() ? *response : http::Response{.status = 0};
  }
  void walk(const json& route) {
    SCOPED_TRACE(route.dump());
    const json& needs = route.at("needs");
    int answer = route.at("answer");
    EXPECT_EQ(send(route, nullptr).status, needs.is_null() ? answer : 401);
    EXPECT_EQ(send(route, "the-wrong-key").status, needs.is_null() ? answer : 401);
    for (const auto& [scopes, list] : table_.at("keys").items()) {
      bool has = needs.is_null() || std::find(list.begin(), list.end(), needs) != list.end();
      EXPECT_EQ(send(route, key_of(scopes).c_str()).status, has ? answer : 403) << scopes;
    }
  }

  testing::TemporaryFolder folder_;
  json table_;
  CoordinatorOptions options_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(CoordinatorAccess, AnswersEachCredentialAsTheTableSays) {
  Names listed;
  for (const json& route : table_.at("routes")) {
    walk(route);
    listed.emplace(route.at("method").get<std::string>(), route.at("path").get<std::string>());
  }
  for (const json& route : table_.at("elsewhere")) walk(route);
  auto served = coordinator_->routes();
  EXPECT_EQ(listed, Names(served.begin(), served.end()));
}

TEST_F(CoordinatorAccess, WithoutKeysNoPageOfAnotherOriginMayAsk) {
  options_.api_keys.clear();
  options_.slots.num_slots = 0;  // the job waits
  start(options_);
  auto ask =
      [&](const char* method, const std::string& path, const http::Headers& headers, const char* body = "") {
        auto response = http::request(
            {.method = method, .url = coordinator_->url() + path, .headers = headers, .body = body},
            Deadline::after_seconds(30));
        EXPECT_TRUE(response.ok()) << response.status().to_string();
        return response.ok() ? *response : http::Response{.status = 0};
      };
  const http::Headers own{{"Origin", coordinator_->url()}};
  const http::Headers foreign{{"Origin", "http://evil.example"}, {"Content-Type", "text/plain"}};
  constexpr const char* kJob = R"({"type":"bench","model":"m","bench":"latency"})";
  EXPECT_EQ(ask("POST", "/v1/jobs", foreign, kJob).status, 403);
  EXPECT_EQ(ask("POST", "/v1/files", foreign, "x").status, 403);
  EXPECT_EQ(json::parse(ask("GET", "/v1/jobs", {}).body).at("data").size(), 0u);

  http::Response made = ask("POST", "/v1/jobs", {}, kJob);
  ASSERT_EQ(made.status, 201) << made.body;
  const std::string job = "/v1/jobs/" + json::parse(made.body).at("id").get<std::string>();
  http::Response refused = ask("POST", job + "/cancel", foreign);
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(json::parse(refused.body).at("error").at("code"), "foreign_page");
  EXPECT_EQ(ask("GET", job, {{"Origin", "null"}}).status, 403);
  EXPECT_EQ(json::parse(ask("GET", job, {}).body).at("state"), "QUEUED");
  EXPECT_EQ(ask("GET", "/dashboard", {}).status, 200);
  EXPECT_EQ(ask("POST", job + "/cancel", own).status, 200) << "as the dashboard does";
}

// Its name leads here because whoever owns it says so, and its pages read what comes from it.
TEST_F(CoordinatorAccess, WithoutKeysNobodyElsesNameIsAnswered) {
  options_.api_keys.clear();
  start(options_);
  for (const auto& [name, status] : {std::pair("evil.example", 403), std::pair("localhost:1", 200)}) {
    http::RawClient client(coordinator_->port());
    client.send(format("GET /v1/jobs HTTP/1.1\r\nHost: {}\r\n\r\n", name));
    EXPECT_EQ(client.read_until("\r\n\r\n").substr(0, 12), format("HTTP/1.1 {}", status)) << name;
  }
}

// Whoever may not is told why, as with less.
TEST_F(CoordinatorAccess, OnlyWhoMayUploadMaySendMuch) {
  std::string much((1 << 20) + 1, 'x');
  auto status = [&](const char* path, const char* key) {
    auto response = http::request({.method = "POST",
                                   .url = coordinator_->url() + path,
                                   .headers = {{"Authorization", std::string("Bearer ") + key}},
                                   .body = much},
                                  Deadline::after_seconds(30));
    return response.ok() ? response->status : 0;
  };
  EXPECT_EQ(status("/v1/files", "key-of-write"), 400) << "it is no form";
  EXPECT_EQ(status("/v1/files", "key-of-read"), 403);
  EXPECT_EQ(status("/v1/files", "no-key"), 401);
  EXPECT_EQ(status("/v1/jobs", "key-of-write"), 413);
}

// The coordinator holds nothing for a stranger: the answer comes before the body.
TEST_F(CoordinatorAccess, WhoHasNoKeyIsRefusedBeforeTheBody) {
  auto answer = [&](const std::string& head) {
    http::RawClient client(coordinator_->port());
    client.send(head + "Host: c\r\n\r\nx");
    return client.read_until("\r\n\r\n").substr(0, 12);
  };
  constexpr const char* kHalf = "Content-Length: 1000\r\n";
  for (const json& route : table_.at("routes")) {
    if (route.at("needs").is_null()) continue;
    std::string line = format("{} {} HTTP/1.1\r\n",
                              route.at("method").get<std::string>(),
                              route.value("as", route.at("path").get<std::string>()));
    EXPECT_EQ(answer(line + kHalf), "HTTP/1.1 401") << line;
    EXPECT_EQ(answer(line + "Transfer-Encoding: chunked\r\n"), "HTTP/1.1 401") << line;
  }
  EXPECT_EQ(answer(format("POST /v1/jobs HTTP/1.1\r\nAuthorization: Bearer {}\r\n{}", key_of("read"), kHalf)),
            "HTTP/1.1 403");
  EXPECT_EQ(answer("POST /v1/replicas HTTP/1.1\r\nContent-Length: 16385\r\n"), "HTTP/1.1 413");
}

}  // namespace
}  // namespace llm_dist::cluster
