#include "tests/cluster/batch_fixture.h"

#include <filesystem>
#include <sstream>

#include "cluster/api/api_reply.h"
#include "cluster/store/sqlite_store.h"

namespace llm_dist::cluster::testing {

using nlohmann::json;

namespace {

constexpr double kPatienceSeconds = 60;
constexpr int64_t kMaxFileBytes = 100'000;
constexpr const char* kMetrics = "llm_dist_num_requests_running 1\nllm_dist_kv_cache_usage_perc 0.5\n";
constexpr Duration kRest = std::chrono::milliseconds(5);

}  // namespace

FakeReplica::FakeReplica(Behaviour behaviour) : behaviour_(std::move(behaviour)) {
  server_ = std::move(http::Server::create({}, [this](const http::Request& request, auto writer) {
              handle(request, std::move(writer));
            })).value();
  url_ = server_->url();
}

FakeReplica::~FakeReplica() {
  die();
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void FakeReplica::handle(const http::Request& request, std::shared_ptr<http::ResponseWriter> writer) {
  if (request.path == "/metrics") {
    writer->send({.content_type = "text/plain", .body = kMetrics});
    return;
  }
  std::string prompt = json::parse(request.body).value("prompt", "");
  std::lock_guard lock(mutex_);
  if (!alive_) return unanswered_.push_back(std::move(writer));
  threads_.emplace_back([this, prompt, writer] {
    std::optional<http::Response> response = behaviour_(*this, prompt);
    if (response) {
      writer->send(*response);
    } else {
      std::lock_guard guard(mutex_);
      unanswered_.push_back(writer);
    }
  });
}

void FakeReplica::die() {
  std::unique_ptr<http::Server> server;
  {
    std::lock_guard lock(mutex_);
    if (!alive_) return;
    alive_ = false;
    server = std::move(server_);
  }
  server.reset();
}

bool FakeReplica::alive() {
  std::lock_guard lock(mutex_);
  return alive_;
}

http::Response answer(const std::string& text) {
  json choice = {{"index", 0}, {"text", text}};
  json body = {{"object", "text_completion"}, {"choices", json::array({choice})}};
  return {.headers = {{"X-Request-Id", "req-" + text}}, .body = body.dump()};
}
http::Response failure(int status, const std::string& code) {
  json body;
  body["error"] = {{"message", "no"}, {"code", code}};
  return {.status = status, .body = body.dump()};
}

Result<std::string> FakeMachine::launch(const LaunchRequest&) {
  replicas.push_back(std::make_unique<FakeReplica>(behaviour));
  return std::to_string(replicas.size() - 1);
}
Result<Observation> FakeMachine::observe(const std::string& handle, const std::string&) {
  bool alive = replicas[std::stoul(handle)]->alive();
  return Observation{.running = alive, .exit_code = alive ? std::nullopt : std::optional<int>(137)};
}
Status FakeMachine::stop(const std::string& handle, StopMode) {
  replicas[std::stoul(handle)]->die();
  return ok_status();
}
Result<int> FakeMachine::sweep(const std::string&, const std::string&) { return 0; }

std::string item_line(const std::string& custom_id, const std::string& prompt, const std::string& model) {
  json line = {{"custom_id", custom_id},
               {"method", "POST"},
               {"url", "/v1/completions"},
               {"body", {{"model", model}, {"prompt", prompt}}}};
  return line.dump() + "\n";
}

void BatchFixture::SetUp() {
  machine_.behaviour = counting();
  restart();
}
void BatchFixture::TearDown() {
  stop_coordinator();
  machine_.replicas.clear();
}

void BatchFixture::stop_coordinator() {
  runner_.reset();
  supervisor_.reset();
  server_.reset();
  if (workers_) workers_->stop();  // what they do may wait for a commit
  commit_.reset();
  workers_.reset();
  feed_.reset();
  store_.reset();
}

void BatchFixture::restart() {
  stop_coordinator();
  auto now_us = [this] { return system_time_us() + clock_offset_us_; };
  store_ = std::move(open_sqlite_store({.path = folder_.file("store")})).value();
  ASSERT_TRUE(contents_.prepare().ok());
  contents_.sweep(store_->batches().contents().value());
  feed_ = std::make_unique<EventFeed>(*store_);
  commit_ = std::make_unique<GroupCommit>(*store_, GroupCommit::Options{});
  workers_ = std::make_unique<Workers>(2);
  router_ = std::make_unique<http::Router>(render_http_error);
  jobs_ = std::make_unique<JobsApi>(JobsApi::Parts{.store = *store_,
                                                   .commit = *commit_,
                                                   .feed = *feed_,
                                                   .workers = *workers_,
                                                   .catalogue = catalogue_,
                                                   .secrets = secrets_,
                                                   .access = access_,
                                                   .attempts_folder = folder_.file("jobs")});
  files_ = std::make_unique<FilesApi>(FilesApi::Parts{.store = *store_,
                                                      .commit = *commit_,
                                                      .workers = *workers_,
                                                      .contents = contents_,
                                                      .max_file_bytes = kMaxFileBytes});
  batches_ = std::make_unique<BatchesApi>(BatchesApi::Parts{.store = *store_,
                                                            .commit = *commit_,
                                                            .workers = *workers_,
                                                            .contents = contents_,
                                                            .catalogue = catalogue_,
                                                            .now_us = now_us});
  jobs_->add_routes(*router_);
  files_->add_routes(*router_);
  replicas_ = std::make_unique<ReplicasApi>(
      ReplicasApi::Parts{.store = *store_, .commit = *commit_, .workers = *workers_});
  loads_ = std::make_unique<ReplicaLoads>(ReplicaLoads::Parts{.store = *store_, .secrets = secrets_});
  overview_ = std::make_unique<OverviewApi>(OverviewApi::Parts{
      .store = *store_, .workers = *workers_, .loads = *loads_, .num_slots = 2, .version = "1"});
  overview_->add_routes(*router_);
  batches_->add_routes(*router_);
  replicas_->add_routes(*router_);
  http::ServerOptions http;
  http.admit = [this](const http::Request& head) {
    return FilesApi::is_upload(head) ? files_->admit(head) : http::Admission();
  };
  server_ = std::move(http::Server::create(http, [this](auto request, auto writer) {
              (*router_)(std::move(request), std::move(writer));
            })).value();
  auto commit = [this, now_us](CommandBody body) { return commit_->commit(now_us(), std::move(body)); };
  auto enqueue = [this, now_us](CommandBody body, GroupCommit::Done done) {
    commit_->enqueue(now_us(), std::move(body), std::move(done));
  };
  supervisor_ = std::make_unique<Supervisor>(Supervisor::Parts{
      .store = *store_,
      .commit = commit,
      .launcher = machine_,
      .watch = watch_,
      .catalogue = catalogue_,
      .places = {.store_path = folder_.file("store"), .folder = folder_.file("jobs"), .url = "http://c"},
      .secrets = secrets_,
      .now_us = now_us,
      .options = {.backoff_us = 1000, .max_backoff_us = 2000, .drain_seconds = 0}});
  runner_ = std::make_unique<BatchRunner>(BatchRunner::Parts{.store = *store_,
                                                             .commit = commit,
                                                             .enqueue = enqueue,
                                                             .contents = contents_,
                                                             .secrets = secrets_,
                                                             .wake = [] {},
                                                             .options = options_,
                                                             .rest_after_failure = kRest,
                                                             .threads = threads_});
}

BatchFixture::Reply BatchFixture::send(const std::string& method,
                                       const std::string& path,
                                       const std::string& body,
                                       http::Headers headers) {
  auto reply = http::request(
      {.method = method, .url = server_->url() + path, .headers = std::move(headers), .body = body},
      Deadline::after_seconds(kPatienceSeconds));
  if (!reply.ok()) return {.status = -1, .text = reply.status().to_string()};
  http::Response& got = reply.value();
  return {got.status, json::parse(got.body, nullptr, false), got.body, got.headers};
}

BatchFixture::Reply BatchFixture::upload(const std::string& content, const std::string& purpose) {
  std::string body = "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n" + purpose +
                     "\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n"
                     "Content-Type: application/octet-stream\r\n\r\n" +
                     content + "\r\n--b--\r\n";
  return send("POST", "/v1/files", body, {{"Content-Type", "multipart/form-data; boundary=b"}});
}

std::string BatchFixture::make_batch(const std::vector<std::string>& prompts,
                                     const std::string& window,
                                     int num_replicas) {
  std::string content;
  for (size_t i = 0; i < prompts.size(); ++i) content += item_line("id-" + std::to_string(i), prompts[i]);
  json request = {{"input_file_id", upload(content).body["id"]},
                  {"endpoint", "/v1/completions"},
                  {"completion_window", window},
                  {"replicas", num_replicas}};
  Reply made = send("POST", "/v1/batches", request.dump());
  EXPECT_EQ(made.status, 200) << made.text;
  return made.body.value("id", "");
}

void BatchFixture::tick() {
  ASSERT_TRUE(supervisor_->tick().ok());
  const std::vector<Job> starting = store_->jobs({.states = {JobState::kStarting}}).value();
  for (const Job& each : starting) {
    Attempt attempt = store_->attempts(each.id).value().back();
    if (attempt.state == AttemptState::kStarting && !attempt.handle.empty()) {
      ChangeJob registered{
          .job = each.id, .to = JobState::kRunning, .intent = each.intent, .reason = "registered"};
      registered.attempt_change = AttemptChange{
          .state = AttemptState::kRunning, .endpoint = machine_.replicas[std::stoul(attempt.handle)]->url()};
      ASSERT_TRUE(commit_->commit(system_time_us() + clock_offset_us_, registered).ok());
    }
  }
  ASSERT_TRUE(runner_->tick().ok());
}

void BatchFixture::run_until(const std::function<bool()>& condition) {
  Deadline deadline = Deadline::after_seconds(kPatienceSeconds);
  while (!condition()) {
    ASSERT_FALSE(deadline.expired()) << "waited in vain";
    tick();
    if (::testing::Test::HasFatalFailure()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void BatchFixture::run_to_end(const std::string& id) {
  run_until([&] { return stored(id).closed; });
}

std::map<std::string, json> BatchFixture::lines(const std::string& id, const char* field) {
  std::map<std::string, json> found;
  json file = batch(id)[field];
  if (file.is_null()) return found;
  std::istringstream text(send("GET", "/v1/files/" + file.get<std::string>() + "/content").text);
  for (std::string line; std::getline(text, line);) {
    json parsed = json::parse(line);
    EXPECT_TRUE(found.emplace(parsed["custom_id"], parsed).second) << "twice: " << line;
  }
  return found;
}

ptrdiff_t BatchFixture::num_contents() const {
  return std::distance(std::filesystem::directory_iterator(folder_.file("files")), {});
}

int BatchFixture::times_executed() {
  std::lock_guard lock(mutex_);
  int sum = 0;
  for (const auto& [prompt, times] : executed_) sum += times;
  return sum;
}
int BatchFixture::times_executed(const std::string& prompt) {
  std::lock_guard lock(mutex_);
  return executed_[prompt];
}

FakeReplica::Behaviour BatchFixture::counting(FakeReplica::Behaviour then) {
  return [this, then](FakeReplica& replica, const std::string& prompt) -> std::optional<http::Response> {
    {
      std::lock_guard lock(mutex_);
      ++executed_[prompt];
    }
    return then ? then(replica, prompt) : answer(prompt);
  };
}

}  // namespace llm_dist::cluster::testing
