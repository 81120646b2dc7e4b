// docs/coordinator-openapi.json against the coordinator: its routes, their keys, and everything that they
// answer. What the document says and no answer shows is a mistake too.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

#include "cluster/api/job_json.h"
#include "cluster/coordinator.h"
#include "cluster/job_spec.h"
#include "src/base/format.h"
#include "src/http/sse.h"
#include "tests/cluster/batch_fixture.h"
#include "tests/server/json_schema.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;
using server::schema_misfit;
using testing::item_line;
using Pointer = json::json_pointer;
using Names = std::set<std::string>;

constexpr const char* kServe = R"({"type":"serve","model":"m","tp":2,"pp":1,"max_model_len":64,
  "max_num_seqs":2,"priority":1,"project":"p","expires_after_seconds":60})";
constexpr const char* kBench = R"({"type":"bench","model":"m","bench":"latency","batch":"1,2","input_len":3,
  "output_len":4,"project":"p"})";

json read_json(const std::string& path) {
  std::ifstream file(LLM_DIST_SOURCE_DIR "/" + path);
  return json::parse(file);
}

// An object has the properties that are documented and no others, so that no field goes undocumented.
void close_objects(json& schema) {
  if (schema.is_object() && schema.contains("properties")) schema["additionalProperties"] = false;
  if (!schema.is_structured()) return;
  for (json& inner : schema) close_objects(inner);
}

class OpenApiTest : public testing::BatchFixture {
 protected:
  void SetUp() override {
    BatchFixture::SetUp();
    document_ = read_json("docs/coordinator-openapi.json");
    close_objects(document_.at("components").at("schemas"));
    matrix_ = read_json("tests/cluster/routes.json");
  }

  const json& resolved(const json& value) const {
    if (!value.contains("$ref")) return value;
    return document_.at(Pointer(value.at("$ref").get<std::string>().substr(1)));
  }
  const json& operation(std::string method, const std::string& path) const {
    std::transform(method.begin(), method.end(), method.begin(), [](char c) { return std::tolower(c); });
    return document_.at("paths").at(path).at(method);
  }
  void expect_fits(const json& schema, const json& value) {
    EXPECT_EQ(schema_misfit(document_, schema, value), "") << value.dump();
    answers_.emplace_back(schema, value);
  }
  // `reply` is one that the document has, with its headers and body as it says.
  void check(const std::string& method, const std::string& path, const Reply& reply) {
    std::string status = std::to_string(reply.status);
    SCOPED_TRACE(format("{} {} {} {}", method, path, status, reply.text));
    const json& responses = operation(method, path).at("responses");
    ASSERT_TRUE(responses.contains(status));
    seen_.insert(format("{} {} {}", method, path, status));
    const json& response = resolved(responses.at(status));
    const json headers = response.value("headers", json::object());
    for (const auto& [name, header] : headers.items()) {
      if (header.value("required", false)) {
        EXPECT_NE(reply.headers.find(name), nullptr) << name;
      }
    }
    if (!response.contains("content")) {
      EXPECT_EQ(reply.text, "");
      return;
    }
    const std::string* sent = reply.headers.find("Content-Type");
    ASSERT_NE(sent, nullptr);
    std::string type = sent->substr(0, sent->find(';'));
    const json& content = response.at("content");
    ASSERT_TRUE(content.contains(type)) << type;
    expect_fits(content.at(type).at("schema"), type == "application/json" ? reply.body : json(reply.text));
  }
  // Asks, and checks the status and all that is documented of it. `path`: {id} stands for `id`.
  Reply ask(int status,
            const std::string& method,
            std::string path,
            const std::string& id = "",
            const std::string& query = "",
            const std::string& body = "",
            http::Headers headers = {}) {
    std::string url = path;
    if (size_t place = url.find("{id}"); place != std::string::npos) url.replace(place, 4, id);
    Reply reply = send(method, url + query, body, std::move(headers));
    EXPECT_EQ(reply.status, status) << method << " " << url << query << " " << reply.text;
    check(method, path, reply);
    return reply;
  }

  void submit_jobs();
  void read_and_change_jobs();
  void read_events();
  void use_files();
  void run_batches();
  void refuse_batches();
  void register_replica();
  void refuse_by_quota();
  void ask_coordinator();
  void expect_every_status_seen();
  void expect_every_field_seen();

  json document_;
  json matrix_;
  Names seen_;                                  // "GET /v1/jobs 200"
  std::vector<std::pair<json, json>> answers_;  // schema and value
};

TEST_F(OpenApiTest, NamesTheRoutesWithTheirScopesAndNoOthers) {
  Names documented;
  for (const auto& [path, methods] : document_.at("paths").items()) {
    for (const auto& [method, what] : methods.items()) documented.insert(method + " " + path);
  }
  Names listed;
  for (const json& route : matrix_.at("routes")) {
    std::string path = route.at("path");
    const json& found = operation(route.at("method"), path);
    const json& needs = route.at("needs");
    json security = needs.is_null() ? json::array() : json::array({{{"key", json::array({needs})}}});
    EXPECT_EQ(found.at("security"), security) << path;
    EXPECT_EQ(found.at("responses").contains("401"), !needs.is_null()) << path;
    std::string method = route.at("method");
    std::transform(method.begin(), method.end(), method.begin(), [](char c) { return std::tolower(c); });
    listed.insert(method + " " + path);
  }
  EXPECT_EQ(documented, listed);
}

TEST_F(OpenApiTest, NamesTheFieldsOfRequests) {
  auto documented = [&](const char* name) {
    Names names;
    const json& properties = document_.at("components").at("schemas").at(name).at("properties");
    for (const auto& [field, schema] : properties.items()) names.insert(field);
    return names;
  };
  auto known = [](JobKind kind) {
    std::vector<std::string_view> fields = job_fields(kind);
    return Names(fields.begin(), fields.end());
  };
  EXPECT_EQ(documented("ServeRequest"), known(JobKind::kServe));
  EXPECT_EQ(documented("BenchRequest"), known(JobKind::kBench));
  Names batch = known(JobKind::kBatchInference);
  for (const char* other : {"type", "model", "expires_after_seconds"}) batch.erase(other);
  batch.insert({"completion_window", "metadata", "output_expires_after"});
  EXPECT_EQ(documented("BatchRequest"), batch);
  for (const auto& [body, name] : {std::pair(kServe, "ServeRequest"), std::pair(kBench, "BenchRequest")}) {
    const json& schema = document_.at("components").at("schemas").at(name);
    EXPECT_EQ(schema_misfit(document_, schema, json::parse(body)), "");
  }
}

TEST_F(OpenApiTest, NamesEveryState) {
  json states = json::array();
  for (int i = 0; i < kNumJobStates; ++i) states.push_back(to_string(static_cast<JobState>(i)));
  const json& schemas = document_.at("components").at("schemas");
  EXPECT_EQ(schemas.at("State").at("enum"), states);
  Names batch_states;
  for (int i = 0; i < kNumJobStates; ++i) batch_states.emplace(batch_status(static_cast<JobState>(i)));
  EXPECT_EQ(schemas.at("Batch").at("properties").at("status").at("enum").get<Names>(), batch_states);
}

// job-1 serves and is suspended and cancelled later; job-2 is a measurement.
void OpenApiTest::submit_jobs() {
  const std::string path = "/v1/jobs";
  http::Headers key{{"Idempotency-Key", "k"}};
  ask(201, "POST", path, "", "", kServe, key);
  Reply replayed = ask(201, "POST", path, "", "", kServe, key);
  EXPECT_NE(replayed.headers.find("Idempotent-Replayed"), nullptr);
  ask(422, "POST", path, "", "", kBench, key);
  ask(400, "POST", path, "", "", R"({"type":"serve"})");
  ask(404, "POST", path, "", "", R"({"type":"serve","model":"n"})");
  ask(201, "POST", path, "", "", kBench);
  ask(200, "GET", path);
  ask(200, "GET", path, "", "?limit=1&type=serve&project=p&state=QUEUED");
  ask(400, "GET", path, "", "?limit=0");
}

void OpenApiTest::read_and_change_jobs() {
  const std::string one = "/v1/jobs/{id}";
  std::string version = *ask(200, "GET", one, "job-1").headers.find("ETag");
  ask(304, "GET", one, "job-1", "", "", {{"If-None-Match", version}});
  ask(400, "GET", one, "job-1", "?wait=61");
  ask(404, "GET", one, "job-99");
  tick();
  for (const char* what : {"/attempts", "/logs", "/events"}) ask(404, "GET", one + what, "job-99");
  const std::string attempt = attempt_folder({.folder = folder_.file("jobs")}, 1, 1);
  std::filesystem::create_directories(attempt);
  std::ofstream(progress_file_of(attempt)) << "7 40";
  EXPECT_FALSE(ask(200, "GET", one + "/attempts", "job-1").body["data"][0]["api_key"].is_null());
  ask(200, "GET", one + "/logs", "job-1");
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(loads_->sample().ok());
    ask(200, "GET", "/v1/overview");
  }
  ask(400, "GET", one + "/logs", "job-1", "?offset=-1");
  ask(409, "POST", one + "/retry", "job-1");
  ask(200, "POST", one + "/suspend", "job-1");
  ask(200, "POST", one + "/resume", "job-1");
  for (const char* action : {"/cancel", "/suspend", "/resume"}) {
    ask(400, "POST", one + action, "job-1", "", "", {{"If-Match", "7"}});
    ask(412, "POST", one + action, "job-1", "", "", {{"If-Match", "\"99\""}});
    ask(404, "POST", one + action, "job-99");
  }
  ask(200, "POST", one + "/cancel", "job-1");
  ask(200, "POST", one + "/cancel", "job-2");
  auto ended = [&](JobId id) { return is_terminal(store_->job(id).value().state); };
  run_until([&] { return ended(1) && ended(2); });
  ask(409, "POST", one + "/suspend", "job-1");
  ask(409, "POST", one + "/resume", "job-1");
  ask(200, "GET", one + "/attempts", "job-1");
  http::Headers key{{"Idempotency-Key", "again"}};
  ask(201, "POST", one + "/retry", "job-1", "", "", key);
  ask(422, "POST", one + "/retry", "job-2", "", "", key);
  ask(400, "POST", one + "/retry", "job-2", "", "", {{"Idempotency-Key", ""}});
  ask(404, "POST", one + "/retry", "job-99");
  ask(200, "POST", one + "/cancel", "job-3");
}

void OpenApiTest::read_events() {
  const std::string path = "/v1/jobs/{id}/events";
  Reply list = ask(200, "GET", path, "job-1", "?stream=false");
  ask(400, "GET", path, "job-1", "?after=99");
  ask(204, "GET", path, "job-1", "?after=" + std::to_string(list.body["data"].size()));
  const json& content = operation("GET", path).at("responses").at("200").at("content");
  size_t count = 0;
  http::Client client;
  auto streamed = client.stream_events({.url = server_->url() + "/v1/jobs/job-1/events"},
                                       Deadline::after_seconds(60),
                                       [&](const http::SseEvent& event) {
                                         expect_fits(content.at("text/event-stream").at("schema"),
                                                     json::parse(event.data));
                                         ++count;
                                         return true;
                                       });
  EXPECT_TRUE(streamed.ok()) << streamed.status().to_string();
  EXPECT_EQ(count, list.body["data"].size());
}

void OpenApiTest::use_files() {
  const std::string path = "/v1/files";
  check("POST", path, upload(item_line("a", "1")));
  check("POST", path, upload(item_line("a", "1"), "fine-tune"));
  check("POST", path, upload(std::string(100'001, 'x')));
  ask(200, "GET", path);
  ask(400, "GET", path, "", "?order=up");
  for (const char* what : {"", "/content"}) {
    ask(200, "GET", path + "/{id}" + what, "file-1");
    ask(404, "GET", path + "/{id}" + what, "file-99");
  }
  ask(200, "DELETE", path + "/{id}", "file-1");
  ask(404, "DELETE", path + "/{id}", "file-1");
  ask(200, "GET", path);  // none
}

// One that is done with an error in it, one that is cancelled, one that expires, one whose input is lost.
void OpenApiTest::run_batches() {
  const std::string one = "/v1/batches/{id}";
  machine_.behaviour = counting([](testing::FakeReplica&, const std::string& prompt) {
    return prompt == "bad" ? testing::failure(400, "no") : testing::answer(prompt);
  });
  ask(200, "GET", "/v1/batches");  // none
  std::string done = make_batch({"good", "bad"}, "24h", 2);
  ask(409, "DELETE", "/v1/files/{id}", file_name(stored(done).input_file));
  ask(200, "GET", one, done);
  run_to_end(done);
  ask(200, "GET", one, done);
  std::string cancelled = make_batch({"x"});
  ask(200, "POST", one + "/cancel", cancelled);
  run_to_end(cancelled);
  ask(200, "GET", one, cancelled);
  std::string late = make_batch({"x"}, "1s");
  clock_offset_us_ = 5'000'000;
  run_to_end(late);
  ask(200, "GET", one, late);
  std::string lost = make_batch({"x"});
  std::filesystem::remove(input_path(lost));
  run_to_end(lost);
  ask(200, "GET", one, lost);
  ask(409, "POST", one + "/cancel", lost);
  ask(409, "POST", "/v1/jobs/{id}/cancel", job_name(job(lost).id));
  ask(200, "GET", "/v1/batches", "", "?limit=2");
  ask(200, "GET", "/v1/jobs");
  ask(200, "GET", "/v1/files");
}

void OpenApiTest::refuse_batches() {
  const std::string path = "/v1/batches";
  json body = {{"input_file_id", upload(item_line("a", "1")).body["id"]},
               {"endpoint", "/v1/completions"},
               {"completion_window", "24h"},
               {"metadata", {{"who", "me"}}}};
  http::Headers key{{"Idempotency-Key", "batch"}};
  std::string made = ask(200, "POST", path, "", "", body.dump(), key).body["id"];
  ask(200, "POST", path + "/{id}/cancel", made);
  body["completion_window"] = "1h";
  ask(422, "POST", path, "", "", body.dump(), key);
  body["input_file_id"] = "file-99";
  ask(404, "POST", path, "", "", body.dump());
  ask(400, "POST", path, "", "", "{}");
  ask(400, "GET", path, "", "?limit=0");
  ask(404, "GET", path + "/{id}", "batch-99");
  ask(404, "POST", path + "/{id}/cancel", "batch-99");
}

void OpenApiTest::register_replica() {
  const std::string path = "/v1/replicas";
  Reply made = ask(201, "POST", "/v1/jobs", "", "", kServe);
  JobId id = parse_job_name(made.body["id"].get<std::string>()).value();
  ASSERT_TRUE(supervisor_->tick().ok());
  ask(200, "GET", "/v1/overview");  // starting
  ask(200, "GET", "/v1/jobs/{id}/attempts", job_name(id));
  json body = {{"job", job_name(id)},
               {"attempt", 1},
               {"secret", secrets_.registration(id, 1)},
               {"endpoint", "http://127.0.0.1:1"}};
  ask(200, "POST", path, "", "", body.dump());
  body["endpoint"] = "http://127.0.0.1:2";
  ask(409, "POST", path, "", "", body.dump());
  body["secret"] = "another";
  ask(403, "POST", path, "", "", body.dump());
  ask(400, "POST", path, "", "", "{}");
}

void OpenApiTest::refuse_by_quota() {
  catalogue_ = Catalogue({{"m", {.path = "/m.gguf", .max_ranks = 4}}}, {{"small", {.max_queued_jobs = 1}}});
  const std::string body = R"({"type":"serve","model":"m","project":"small"})";
  std::string id = ask(201, "POST", "/v1/jobs", "", "", body).body["id"];
  ask(429, "POST", "/v1/jobs", "", "", body);
  ask(200, "POST", "/v1/jobs/{id}/cancel", id);
  ask(201, "POST", "/v1/jobs/{id}/retry", id);
  ask(429, "POST", "/v1/jobs/{id}/retry", id);
  json batch = {{"input_file_id", upload(item_line("a", "p")).body["id"]},
                {"endpoint", "/v1/completions"},
                {"completion_window", "24h"},
                {"project", "small"}};
  ask(429, "POST", "/v1/batches", "", "", batch.dump());
}

// What needs a whole coordinator: what it says of itself, and what it refuses for want of a key or for size.
void OpenApiTest::ask_coordinator() {
  std::ofstream(folder_.file("models.json")) << R"({"models":{"m":{"path":"/nowhere.gguf"}}})";
  CoordinatorOptions options{.store_path = folder_.file("other-store"),
                             .catalogue_file = folder_.file("models.json"),
                             .program = "/bin/false",
                             .version = "1",
                             .port = 0};
  for (const char* key : {"all", "reader read", "scraper metrics"}) {
    options.api_keys.push_back(parse_access_key(key).value());
  }
  auto coordinator = std::move(Coordinator::start(options)).value();
  for (const json& route : matrix_.at("routes")) {
    std::string method = route.at("method");
    std::string path = route.at("path");
    auto with_key = [&](const std::string& key, const std::string& body = "") {
      http::Headers headers{{"Authorization", "Bearer " + key}};
      auto answer = http::request({.method = method,
                                   .url = coordinator->url() + route.value("as", path),
                                   .headers = headers,
                                   .body = body},
                                  Deadline::after_seconds(60));
      ASSERT_TRUE(answer.ok()) << answer.status().to_string();
      const http::Response& got = answer.value();
      check(method, path, {got.status, json::parse(got.body, nullptr, false), got.body, got.headers});
    };
    with_key("all");
    with_key("wrong");
    with_key(route.at("needs") == "read" ? "scraper" : "reader");
    bool sized = operation(method, path).at("responses").contains("413");
    if (sized && path != "/v1/files") with_key("all", std::string((1 << 20) + 1, 'x'));
  }
}

void OpenApiTest::expect_every_status_seen() {
  // While another request with its key is under way: see AKeyInFlightIsAConflict.
  seen_.insert("POST /v1/jobs 409");
  for (const auto& [path, methods] : document_.at("paths").items()) {
    for (const auto& [method, what] : methods.items()) {
      std::string upper = method;
      std::transform(upper.begin(), upper.end(), upper.begin(), [](char c) { return std::toupper(c); });
      for (const auto& [status, response] : what.at("responses").items()) {
        if (status == "default") continue;
        EXPECT_TRUE(seen_.contains(format("{} {} {}", upper, path, status))) << upper << path << status;
      }
    }
  }
}

// Every place of the schemas of answers where a property is, and every type of it where it may have several.
void find_mutations(const json& schema, const Pointer& here, std::vector<std::pair<Pointer, json>>& found) {
  if (schema.contains("type") && schema.at("type").is_array()) {
    for (const json& type : schema.at("type")) {
      json fewer = schema;
      fewer["type"].erase(std::find(fewer["type"].begin(), fewer["type"].end(), type));
      found.emplace_back(here, fewer);
    }
  }
  const json properties = schema.value("properties", json::object());
  for (const auto& [name, property] : properties.items()) {
    Pointer place = here / "properties" / name;
    found.emplace_back(place, json{{"enum", json::array()}});
    find_mutations(property, place, found);
  }
  if (schema.contains("items")) find_mutations(schema.at("items"), here / "items", found);
}

// With any property of the document another, or one of its types missing, some answer would not have fitted:
// there is none that was never checked.
void OpenApiTest::expect_every_field_seen() {
  std::vector<std::pair<Pointer, json>> mutations;
  for (const auto& [name, schema] : document_.at("components").at("schemas").items()) {
    if (name.ends_with("Request")) continue;
    find_mutations(schema, Pointer("/components/schemas") / name, mutations);
  }
  EXPECT_GT(mutations.size(), 100u);
  for (const auto& [place, mutant] : mutations) {
    json original = document_.at(place);
    document_[place] = mutant;
    bool noticed = std::any_of(answers_.begin(), answers_.end(), [&](const auto& answer) {
      return !schema_misfit(document_, answer.first, answer.second).empty();
    });
    EXPECT_TRUE(noticed) << place.to_string() << " as " << mutant.dump();
    document_[place] = original;
  }
}

TEST_F(OpenApiTest, AnswersHaveTheDocumentedShape) {
  submit_jobs();
  read_and_change_jobs();
  read_events();
  use_files();
  run_batches();
  refuse_batches();
  register_replica();
  refuse_by_quota();
  ask_coordinator();
  expect_every_status_seen();
  expect_every_field_seen();
}

}  // namespace
}  // namespace llm_dist::cluster
