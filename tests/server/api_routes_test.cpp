// Every route against every credential, as routes.json has it, and against docs/openapi.json.
#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>

#include "src/server/request_schema.h"
#include "tests/server/json_schema.h"
#include "tests/server/server_fixture.h"

namespace llm_dist::server {
namespace {

const char* const kKey = "the-right-key";

Json read_json(const std::string& path) {
  std::ifstream file(LLM_DIST_SOURCE_DIR "/" + path);
  return Json::parse(file);
}

using Names = std::set<std::pair<std::string, std::string>>;  // method, path

class ApiRoutes : public ServerFixture {
 protected:
  http::Response send(const std::string& method, const Json& route, const char* key) {
    http::Headers headers;
    if (key != nullptr) headers.add("Authorization", std::string("Bearer ") + key);
    return send(method, route, headers);
  }
  http::Response send(const std::string& method, const Json& route, const http::Headers& headers) {
    std::string path = route.value("as", route.at("path").get<std::string>());
    std::string body = route.contains("body") ? route.at("body").dump() : "";
    auto response = http::request(
        {.method = method, .url = server->url() + path, .headers = headers, .body = body}, soon());
    EXPECT_TRUE(response.ok()) << response.status().to_string();
    return response.ok() ? *response : http::Response{.status = 0};
  }
  void walk(const Json& route) {
    SCOPED_TRACE(route.at("method").get<std::string>() + " " + route.at("path").get<std::string>());
    start({.api_keys = {kKey}});  // afresh: one of them drains it
    std::string method = route.at("method");
    EXPECT_EQ(send(method, route, nullptr).status, route.at("none"));
    EXPECT_EQ(send(method, route, "the-wrong-key").status, route.at("wrong"));
    if (route.contains("wrong_method")) {
      const Json& wrong = route.at("wrong_method");
      EXPECT_EQ(send(wrong.at("method"), route, nullptr).status, wrong.at("none"));
      http::Response refused = send(wrong.at("method"), route, kKey);
      EXPECT_EQ(refused.status, wrong.at("right"));
      ASSERT_NE(refused.headers.find("Allow"), nullptr);
      EXPECT_EQ(*refused.headers.find("Allow"), wrong.at("allow").get<std::string>());
    }
    EXPECT_EQ(send(method, route, kKey).status, route.at("right"));
  }
  Names served() {
    Names names;
    for (const Route& route : server->routes()) names.emplace(route.method, route.path);
    return names;
  }
};

TEST_F(ApiRoutes, AnswerEachCredentialAsTheTableSays) {
  Json table = read_json("tests/server/routes.json");
  Names listed;
  for (const Json& route : table.at("routes")) {
    walk(route);
    listed.emplace(route.at("method").get<std::string>(), route.at("path").get<std::string>());
  }
  for (const Json& route : table.at("elsewhere")) walk(route);
  EXPECT_EQ(listed, served());
}

class OpenApi : public ApiRoutes {
 protected:
  void SetUp() override {
    ApiRoutes::SetUp();
    document = read_json("docs/openapi.json");
  }
  const Json& operation(std::string method, const std::string& path) {
    std::transform(method.begin(), method.end(), method.begin(), [](char c) { return std::tolower(c); });
    return document.at("paths").at(path).at(method);
  }
  // The answer's status is documented, and its body is as documented.
  void check(const std::string& method, const std::string& path, const http::Response& response) {
    SCOPED_TRACE(method + " " + path + " " + std::to_string(response.status) + " " + response.body);
    const Json& responses = operation(method, path).at("responses");
    std::string status = std::to_string(response.status);
    ASSERT_TRUE(responses.contains(status));
    Json expected = responses.at(status);
    if (expected.contains("$ref")) {
      expected = document.at(Json::json_pointer(expected.at("$ref").get<std::string>().substr(1)));
    }
    const Json& schema = expected.at("content").at("application/json").at("schema");
    EXPECT_EQ(schema_misfit(document, schema, Json::parse(response.body)), "");
  }
  void check_post(const std::string& path, const Json& body) { check("POST", path, post(path, body)); }
  void check_stream(const std::string& path, const Json& body) {
    const Json& content = operation("POST", path).at("responses").at("200").at("content");
    const Json& schema = content.at("text/event-stream").at("schema");
    Stream streamed = stream(path, body);
    EXPECT_TRUE(streamed.done);
    for (const Json& chunk : streamed.chunks)
      EXPECT_EQ(schema_misfit(document, schema, chunk), "") << chunk.dump();
  }

  Json document;
};

TEST_F(OpenApi, NamesTheServersRoutesAndNoOthers) {
  Names documented;
  for (const auto& [path, methods] : document.at("paths").items()) {
    for (const auto& [method, what] : methods.items()) {
      std::string upper = method;
      std::transform(upper.begin(), upper.end(), upper.begin(), [](char c) { return std::toupper(c); });
      documented.emplace(upper, path);
    }
  }
  EXPECT_EQ(documented, served());
}

TEST_F(OpenApi, SaysWhichRoutesNeedAKey) {
  const Json matrix = read_json("tests/server/routes.json");
  for (const Json& route : matrix.at("routes")) {
    const Json& found = operation(route.at("method"), route.at("path"));
    bool open = found.contains("security") && found.at("security").empty();
    EXPECT_EQ(open, route.at("none") != 401) << route.at("path");
    EXPECT_EQ(open, !found.at("responses").contains("401")) << route.at("path");
    EXPECT_TRUE(found.at("responses").contains(std::to_string(route.at("right").get<int>())))
        << route.at("path");
  }
}

TEST_F(OpenApi, EveryRouteRefusesAPageOfAnotherOrigin) {
  const Json matrix = read_json("tests/server/routes.json");
  const http::Headers foreign{{"Origin", "http://evil.example"}};
  for (const Json& route : matrix.at("routes")) {
    const std::string method = route.at("method");
    const http::Response refused = send(method, route, foreign);
    EXPECT_EQ(refused.status, 403) << route.at("path");
    check(method, route.at("path"), refused);
  }
}

TEST_F(OpenApi, NamesTheFieldsOfRequests) {
  const std::pair<Endpoint, const char*> requests[] = {{Endpoint::kChat, "ChatRequest"},
                                                       {Endpoint::kCompletions, "CompletionRequest"},
                                                       {Endpoint::kTokenize, "TokenizeRequest"},
                                                       {Endpoint::kDetokenize, "DetokenizeRequest"}};
  for (const auto& [endpoint, name] : requests) {
    std::set<std::string> documented;
    for (const auto& [field, schema] :
         document.at("components").at("schemas").at(name).at("properties").items())
      documented.insert(field);
    std::set<std::string> known;
    for (const Field& field : request_fields())
      if ((field.endpoints & static_cast<uint8_t>(endpoint)) != 0) known.emplace(field.name);
    EXPECT_EQ(documented, known) << "docs/openapi.json, " << name;
  }
}

TEST_F(OpenApi, RepliesHaveTheDocumentedShape) {
  engine->set_scripts({script("abc")});
  for (const char* path : {"/v1/models", "/livez", "/readyz", "/health", "/version"})
    check("GET", path, get(path));
  check("GET", "/v1/models/{id}", get("/v1/models/tiny"));
  check("GET", "/v1/models/{id}", get("/v1/models/other"));
  check("GET", "/v1/models/{owner}/{id}", get("/v1/models/owner/tiny"));
  Json talk = chat("x");
  Json text = completion("x");
  check_post("/v1/chat/completions", talk);
  check_post("/v1/completions", text);
  check_stream("/v1/chat/completions", talk);
  check_stream("/v1/completions", text);
  talk["logprobs"] = true;
  talk["top_logprobs"] = 2;
  talk["stream_options"] = text["stream_options"] = {{"include_usage", true}};
  text["logprobs"] = 2;
  check_stream("/v1/chat/completions", talk);
  check_stream("/v1/completions", text);
  talk.erase("stream_options");
  text.erase("stream_options");
  check_post("/v1/chat/completions", talk);
  check_post("/v1/completions", text);
  check_post("/v1/completions", {{"prompt", "x"}});  // 400
  talk["model"] = "other";
  check_post("/v1/chat/completions", talk);  // 404
  check_post("/tokenize", {{"prompt", "x"}});
  check_post("/tokenize", {{"prompt", "x"}, {"return_token_strs", true}});
  check_post("/tokenize", {{"prompt", "x"}, {"model", "other"}});
  check_post("/detokenize", {{"tokens", {120}}});
  check_post("/detokenize", Json::object());
}

TEST_F(OpenApi, RefusalsHaveTheDocumentedShape) {
  engine->refuse(resource_exhausted("the queue is full"));
  check_post("/v1/completions", completion("x"));
  check("POST", "/admin/drain", post("/admin/drain", std::string()));
  for (const char* path : {"/readyz", "/health", "/livez"}) check("GET", path, get(path));
  check_post("/v1/chat/completions", chat("x"));
  start({.api_keys = {kKey}});
  check("GET", "/v1/models", get("/v1/models"));
  check_post("/tokenize", {{"prompt", "x"}});
}

TEST(JsonSchema, FindsWhatDoesNotFit) {
  Json schema = Json::parse(R"({"type": "object", "required": ["a"], "properties": {
    "a": {"type": "array", "items": {"type": ["integer", "null"]}}, "b": {"enum": ["x"]}}})");
  auto misfit = [&](const char* value) { return schema_misfit(schema, schema, Json::parse(value)); };
  EXPECT_EQ(misfit(R"({"a": [1, null], "b": "x", "c": 3})"), "");
  EXPECT_EQ(misfit(R"({"b": "x"})"), ": lacks a");
  EXPECT_EQ(misfit(R"({"a": [1, "2"]})"), ".a[1]: is \"2\", not [\"integer\",\"null\"]");
  EXPECT_EQ(misfit(R"({"a": [], "b": "y"})"), ".b: is \"y\", none of [\"x\"]");
  schema["properties"]["b"] = {{"pattern", "x"}};
  EXPECT_EQ(misfit(R"({"a": [], "b": "y"})"), ".b: unknown keyword pattern");
}

}  // namespace
}  // namespace llm_dist::server
