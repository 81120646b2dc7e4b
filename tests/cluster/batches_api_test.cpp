// /v1/batches over HTTP, and the input files that it reads; nobody runs the batches.
#include "cluster/api/batches_api.h"

#include <fstream>

#include "cluster/batch_input.h"
#include "tests/cluster/batch_fixture.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;
using testing::item_line;

class BatchInputTest : public ::testing::Test {
 protected:
  std::string write(const std::string& content) {
    std::string path = folder_.file("input");
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  Status check(const std::string& content) {
    return check_batch_input(write(content), "/v1/completions").status();
  }
  testing::TemporaryFolder folder_;
};

TEST_F(BatchInputTest, CountsItemsAndKnowsTheirPlaces) {
  std::string first = item_line("a", "1");
  std::string content = first + "\n \r\n" + item_line("b", "2");
  content.insert(content.size() - 1, "\r");
  content += item_line("c", "3");
  content.pop_back();  // the last line needs no break
  auto summary = check_batch_input(write(content), "/v1/completions");
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(summary.value().num_items, 3);
  EXPECT_EQ(summary.value().model, "m");
  auto input = std::move(BatchInput::open(write(content))).value();
  std::vector<ItemPlace> places;
  for (auto place = input.next(); place.value(); place = input.next()) places.push_back(*place.value());
  ASSERT_EQ(places.size(), 3u);
  EXPECT_EQ(places[0].number, 1);
  EXPECT_EQ(places[1].number, 4);
  EXPECT_EQ(places[2].number, 5);
  // In any order.
  for (size_t i : {2, 0, 1}) {
    auto line = input.read(places[i]);
    ASSERT_TRUE(line.ok());
    EXPECT_EQ(parse_batch_line(line.value(), "/v1/completions").value().custom_id, std::string(1, "abc"[i]));
  }
}

TEST_F(BatchInputTest, ErrorsNameTheLine) {
  const std::string good = item_line("a", "1");
  auto line = [](const char* field, const json& value) {
    json item = json::parse(item_line("b", "2"));
    item[field] = value;
    return item.dump();
  };
  std::string deep = R"({"custom_id":"b","method":"POST","url":"/v1/completions","body":{"model":"m","x":)" +
                     std::string(100, '[') + std::string(100, ']') + "}}";
  const std::pair<std::string, const char*> kBad[] = {
      {"{", "not a JSON object"},
      {"[]", "not a JSON object"},
      {"\xff", "not a JSON object"},
      {line("custom_id", nullptr), "'custom_id'"},
      {line("custom_id", ""), "'custom_id'"},
      {line("custom_id", std::string(513, 'x')), "'custom_id'"},
      {line("custom_id", "a"), "'a' was given before"},
      {line("method", "GET"), "'method'"},
      {line("url", "/v1/chat/completions"), "'url'"},
      {line("body", "x"), "'body'"},
      {line("body", json::object()), "'body.model'"},
      {line("body", {{"model", "m"}, {"stream", true}}), "'body.stream'"},
      {line("body", {{"model", "n"}}), "model 'n'"},
      {line("costom_id", "x"), "'custom_id'"},
      {deep, "deeper"},
      {std::string(kMaxLineBytes + 1, ' '), "longer"},
  };
  for (const auto& [bad, message] : kBad) {
    Status status = check(good + bad + "\n" + good);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << message;
    EXPECT_EQ(status.message().find("line 2: "), 0u) << status.message();
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
  }
  EXPECT_TRUE(check(good + line("body", {{"model", "m"}, {"stream", false}})).ok());
  EXPECT_FALSE(check("").ok());
  EXPECT_FALSE(check("\n\n").ok());
  EXPECT_EQ(check_batch_input(folder_.file("none"), "/v1/completions").status().code(),
            StatusCode::kDataLoss);
}

TEST_F(BatchInputTest, AReadThatFailsIsNoEnd) {
  // A folder can be opened, but not read.
  EXPECT_EQ(check_batch_input(folder_.file(""), "/v1/completions").status().code(), StatusCode::kDataLoss);
}

TEST_F(BatchInputTest, LinesOfAnyLength) {
  // Breaks before, at and after the ends of what is read at a time.
  std::string content;
  std::vector<size_t> lengths;
  for (size_t length = 65'530; length < 65'542; ++length) lengths.push_back(length);
  for (size_t length : {size_t{1}, kMaxLineBytes, size_t{131'072}}) lengths.push_back(length);
  for (size_t length : lengths) content += std::string(length, 'x') + "\n";
  auto input = std::move(BatchInput::open(write(content))).value();
  for (size_t i = 0; i < lengths.size(); ++i) {
    auto place = input.next().value();
    ASSERT_TRUE(place.has_value());
    EXPECT_EQ(place->number, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(input.line(), std::string(lengths[i], 'x'));
    EXPECT_EQ(content[static_cast<size_t>(place->offset) + place->bytes], '\n');
  }
  EXPECT_FALSE(input.next().value().has_value());
}

TEST_F(BatchInputTest, FiftyThousandItemsAndNoMore) {
  std::string content;
  for (int i = 0; i < kMaxItems; ++i) content += item_line(std::to_string(i), "p");
  EXPECT_TRUE(check(content).ok());
  EXPECT_EQ(check(content + item_line("more", "p")).message(), "line 50001: a batch may have 50000 requests");
}

class BatchesApiTest : public testing::BatchFixture {
 protected:
  json request(const std::string& file) {
    return {{"input_file_id", file}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}};
  }
  Reply create(const json& body, http::Headers headers = {}) {
    return send("POST", "/v1/batches", body.dump(), std::move(headers));
  }
};

TEST_F(BatchesApiTest, CreateAndGet) {
  std::string file = upload(item_line("a", "1") + item_line("b", "2")).body["id"];
  json body = request(file);
  body["metadata"] = {{"who", "me"}};
  body["tp"] = 2;
  body["priority"] = 3;
  Reply made = create(body);
  ASSERT_EQ(made.status, 200) << made.text;
  const json& batch = made.body;
  EXPECT_EQ(batch["id"], "batch-1");
  EXPECT_EQ(batch["object"], "batch");
  EXPECT_EQ(batch["status"], "validating");
  EXPECT_EQ(batch["endpoint"], "/v1/completions");
  EXPECT_EQ(batch["input_file_id"], file);
  EXPECT_EQ(batch["completion_window"], "24h");
  EXPECT_EQ(batch["model"], "m");
  EXPECT_EQ(batch["metadata"], (json{{"who", "me"}}));
  EXPECT_EQ(batch["expires_at"].get<int64_t>() - batch["created_at"].get<int64_t>(), 24 * 3600);
  EXPECT_EQ(batch["request_counts"], (json{{"total", 2}, {"completed", 0}, {"failed", 0}}));
  for (const char* none : {"errors", "output_file_id", "error_file_id", "in_progress_at", "completed_at"}) {
    EXPECT_TRUE(batch[none].is_null()) << none;
  }
  EXPECT_EQ(send("GET", "/v1/batches/batch-1").body, batch);
  json job = send("GET", "/v1/jobs/job-1").body;
  EXPECT_EQ(job["type"], "batch_inference");
  EXPECT_EQ(job["priority"], 3);
  EXPECT_EQ(job["spec"]["tp"], 2);
  EXPECT_EQ(send("DELETE", "/v1/files/" + file).status, 409) << "the batch reads it";
  for (const char* path : {"/v1/batches/batch-2", "/v1/batches/job-1", "/v1/batches/x"}) {
    EXPECT_EQ(send("GET", path).status, 404) << path;
  }
}

TEST_F(BatchesApiTest, BadRequestsNameTheField) {
  std::string file = upload(item_line("a", "1")).body["id"];
  std::string twice = upload(item_line("a", "1") + item_line("a", "2")).body["id"];
  std::string unknown = upload(item_line("a", "1", "no-such-model")).body["id"];
  auto with = [&](const char* field, const json& value) {
    json body = request(file);
    body[field] = value;
    return body;
  };
  const std::tuple<json, int, const char*> kBad[] = {
      {json::array(), 400, ""},
      {json::object(), 400, "input_file_id"},
      {with("input_file_id", 7), 400, "input_file_id"},
      {with("input_file_id", "file-99"), 404, "input_file_id"},
      {with("input_file_id", "/etc/passwd"), 404, "input_file_id"},
      {with("input_file_id", twice), 400, "input_file_id"},
      {with("input_file_id", unknown), 404, "model"},
      {with("endpoint", "/v1/embeddings"), 400, "endpoint"},
      {with("endpoint", "/v1/chat/completions"), 400, "input_file_id"},
      {with("completion_window", "24"), 400, "completion_window"},
      {with("completion_window", "0h"), 400, "completion_window"},
      {with("completion_window", "31d"), 400, "completion_window"},
      {with("metadata", "x"), 400, "metadata"},
      {with("metadata", {{"k", 7}}), 400, "metadata"},
      {with("metadata", {{"k", std::string(513, 'v')}}), 400, "metadata"},
      {with("output_expires_after", {{"seconds", 3600}}), 400, "output_expires_after"},
      {with("model", "m"), 400, "model"},
      {with("tp", 8), 400, "tp"},
      {with("bench", "latency"), 400, "bench"},
      {with("metdata", {}), 400, "metdata"},
  };
  for (const auto& [body, status, param] : kBad) {
    Reply reply = create(body);
    EXPECT_EQ(reply.status, status) << body << reply.text;
    EXPECT_EQ(reply.body["error"]["param"], *param == '\0' ? json(nullptr) : json(param)) << reply.text;
  }
  EXPECT_NE(create(with("input_file_id", twice)).text.find("line 2: the custom_id 'a'"), std::string::npos);
  EXPECT_NE(create(with("metdata", {})).text.find("did you mean 'metadata'"), std::string::npos);
  EXPECT_EQ(send("POST", "/v1/batches", std::string(100'000, '[')).status, 400);
  for (const char* project : {"caf\xe9", "caf\xc3\xa9"})  // no header has an encoding
    EXPECT_EQ(send("POST", "/v1/batches", request(file).dump(), {{"OpenAI-Project", project}}).status, 400);
  EXPECT_EQ(send("GET", "/v1/batches").body["data"].size(), 0u);
  EXPECT_EQ(create(with("metadata", nullptr)).status, 200);
}

TEST_F(BatchesApiTest, TheSameKeyIsTheSameBatch) {
  std::string file = upload(item_line("a", "1")).body["id"];
  http::Headers key{{"Idempotency-Key", "k"}};
  Reply first = create(request(file), key);
  EXPECT_EQ(first.body["id"], "batch-1");
  EXPECT_EQ(first.headers.find("Idempotent-Replayed"), nullptr);
  ASSERT_EQ(send("POST", "/v1/batches/batch-1/cancel").body["status"], "cancelling");
  Reply second = create(request(file), key);
  EXPECT_EQ(second.text, first.text) << "the same answer, whatever became of it since";
  ASSERT_NE(second.headers.find("Idempotent-Replayed"), nullptr);
  json other = request(file);
  other["completion_window"] = "1h";
  EXPECT_EQ(create(other, key).status, 422);
  EXPECT_EQ(create(request(file)).body["id"], "batch-2");
}

TEST_F(BatchesApiTest, ListsPage) {
  std::string file = upload(item_line("a", "1")).body["id"];
  for (int i = 0; i < 3; ++i) ASSERT_EQ(create(request(file)).status, 200);
  Reply page = send("GET", "/v1/batches?limit=2");
  EXPECT_EQ(page.body["data"].size(), 2u);
  EXPECT_EQ(page.body["first_id"], "batch-3");
  EXPECT_EQ(page.body["last_id"], "batch-2");
  EXPECT_EQ(page.body["has_more"], true);
  page = send("GET", "/v1/batches?limit=2&after=batch-2");
  EXPECT_EQ(page.body["data"][0]["id"], "batch-1");
  EXPECT_EQ(page.body["has_more"], false);
  for (const char* bad : {"limit=0", "limit=101", "after=job-1"}) {
    EXPECT_EQ(send("GET", std::string("/v1/batches?") + bad).status, 400) << bad;
  }
}

TEST_F(BatchesApiTest, JobsOfBatchesAreMadeHereOnly) {
  Reply refused = send("POST", "/v1/jobs", R"({"type":"batch_inference","model":"m"})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.body["error"]["param"], "type");
  std::string id = make_batch({"p"});
  ASSERT_EQ(send("POST", "/v1/jobs/job-1/cancel").body["state"], "CANCELLED");
  EXPECT_EQ(send("POST", "/v1/jobs/job-1/retry").status, 400);
}

TEST(BatchStatus, FollowsTheJobAndItsFiles) {
  using enum JobState;
  auto status = [](JobState state, bool closed, bool ran) {
    BatchView view{.job = {.state = state}, .batch = {.closed = closed}};
    if (ran) view.events = {{.to = kQueued, .at_us = 1}, {.to = kRunning, .at_us = 2}};
    return std::string(status_of(view));
  };
  EXPECT_EQ(status(kQueued, false, false), "validating");
  EXPECT_EQ(status(kStarting, false, false), "validating");
  EXPECT_EQ(status(kQueued, false, true), "in_progress");
  EXPECT_EQ(status(kStarting, false, true), "in_progress");
  EXPECT_EQ(status(kRecovering, false, true), "in_progress");
  EXPECT_EQ(status(kFinalizing, false, true), "finalizing");
  const std::tuple<JobState, const char*, const char*> kEnds[] = {{kSucceeded, "finalizing", "completed"},
                                                                  {kFailed, "finalizing", "failed"},
                                                                  {kExpired, "finalizing", "expired"},
                                                                  {kCancelled, "cancelling", "cancelled"}};
  for (const auto& [state, before, after] : kEnds) {
    EXPECT_EQ(status(state, false, true), before);
    EXPECT_EQ(status(state, true, true), after);
  }
}

TEST(CompletionWindow, OpenAIsAndOthers) {
  EXPECT_EQ(parse_completion_window("24h").value(), 86'400);
  EXPECT_EQ(parse_completion_window("90s").value(), 90);
  EXPECT_EQ(parse_completion_window("30m").value(), 1'800);
  EXPECT_EQ(parse_completion_window("30d").value(), 30 * 86'400);
  for (const char* bad : {"", "h", "24", "-1h", "0s", "1h30m", "24H", "99999999999999999999d"}) {
    EXPECT_FALSE(parse_completion_window(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace llm_dist::cluster
