#include "tests/cluster/simulation/clients.h"

#include <nlohmann/json.hpp>

#include "src/http/exchange.h"

namespace llm_dist::cluster::simulation {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kPatience = seconds(90);  // of a client, for one answer
constexpr size_t kMaxQueueBytes = 1 << 20;

http::Response read_response(const std::string& text) {
  http::Response response{.status = std::stoi(text.substr(text.find(' ') + 1))};
  size_t body = text.find("\r\n\r\n");
  size_t line = text.find("\r\n") + 2;
  while (line < body) {
    size_t end = text.find("\r\n", line);
    size_t colon = text.find(": ", line);
    response.headers.add(text.substr(line, colon - line), text.substr(colon + 2, end - colon - 2));
    line = end + 2;
  }
  response.body = text.substr(body + 4);
  return response;
}

JobId id_in(const http::Response& response) {
  json body = json::parse(response.body, nullptr, false);
  std::string id = body.is_object() ? body.value("id", "") : "";
  Result<JobId> job = id.starts_with("batch-") ? parse_batch_name(id) : parse_job_name(id);
  return job.ok() ? job.value() : 0;
}

}  // namespace

std::optional<std::string> Clients::exchange(http::Request request, TimePoint until, bool& complete) {
  complete = false;
  Fibers& fibers = *world_.fibers;
  fibers.sleep(fibers.between(0, 0.01));
  CoordinatorLife* life = current_();
  if (life == nullptr || *life->dead || world_.fault(0.02)) return std::nullopt;
  // It may be gone before it answers.
  const std::shared_ptr<bool> dead = life->dead;
  std::shared_ptr<Condition> woken = fibers.make_condition();
  auto exchange = std::make_shared<http::Exchange>(http::ExchangeTraits{.max_queue_bytes = kMaxQueueBytes},
                                                   [woken] { woken->notify_all(); });
  life->handle(std::move(request), std::make_shared<http::ResponseWriter>(exchange));
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::string text;
  std::string bytes;
  while (fibers.now() <= until) {
    http::Exchange::Next next = exchange->next(bytes);
    text += bytes;
    if (*dead || next == http::Exchange::Next::kAbort)
      return text.empty() ? std::nullopt : std::optional(text);
    complete = next == http::Exchange::Next::kDone;
    if (complete) break;
    if (next == http::Exchange::Next::kWrite) continue;
    // A coordinator that dies says nothing: a connection that breaks is noticed within a second.
    (void)woken->wait_until(lock, fibers.now() + seconds(1));
  }
  if (complete) {
    exchange->detach();
  } else {
    exchange->disconnect();
  }
  return text;
}

Reply Clients::send(http::Request request) {
  Fibers& fibers = *world_.fibers;
  bool complete = false;
  TimePoint until = fibers.now() + kPatience;
  std::optional<std::string> text = exchange(std::move(request), until, complete);
  if (fibers.now() > until) world_.violate("a request is never answered");
  fibers.sleep(fibers.between(0, 0.01));
  if (!text || !complete || world_.fault(0.05)) return std::nullopt;
  return read_response(*text);
}

Reply Clients::insist(const http::Request& request, bool repeats) {
  while (true) {
    Reply reply = send(request);
    bool says_something = reply && reply->status < 500 && reply->body.find("in_flight") == std::string::npos;
    if (reply && reply->status == 500) world_.violate("500: " + reply->body);
    if (says_something) return reply;
    // Without a key nobody knows what another one would do, unless it was turned away.
    if (!repeats && !reply) return std::nullopt;
    world_.fibers->sleep(world_.fibers->between(0.2, 3));
  }
}

void Clients::live(TimePoint end) {
  Fibers& fibers = *world_.fibers;
  while (fibers.now() < end) {
    do_something();
    fibers.sleep(fibers.between(0.1, 25));
  }
}

void Clients::do_something() {
  int64_t dice = world_.fibers->below(100);
  if (dice < 35) return submit_job();
  if (dice < 45) return submit_batch();
  std::optional<JobId> job = any_job();
  if (!job) return submit_job();
  if (dice < 58) return act(*job, "cancel");
  if (dice < 70) return act(*job, "suspend");
  if (dice < 82) return act(*job, "resume");
  if (dice < 87) return retry(*job);
  if (dice < 94) return follow(*job);
  look(*job);
}

std::optional<JobId> Clients::any_job() {
  std::vector<JobId> jobs = ledger_.jobs();
  if (jobs.empty()) return std::nullopt;
  return jobs[world_.fibers->below(static_cast<int64_t>(jobs.size()))];
}

void Clients::submit_job() {
  Fibers& fibers = *world_.fibers;
  int64_t token = ++last_token_;
  json body = {{"model", "m"}, {"project", "p"}, {"priority", fibers.below(3)}};
  if (fibers.chance(0.5)) {
    body.update({{"type", "bench"}, {"bench", "latency"}, {"input_len", token}});
  } else {
    body.update({{"type", "serve"}, {"max_model_len", token}});
  }
  if (fibers.chance(0.3)) body["tp"] = 1 + fibers.below(kNumSlots);
  if (fibers.chance(0.03)) body["tp"] = kNumSlots + 1;
  if (fibers.chance(0.3)) body["expires_after_seconds"] = 1 + fibers.below(90);
  http::Request request{.method = "POST", .path = "/v1/jobs", .body = body.dump()};
  bool has_key = fibers.chance(0.8);
  if (has_key) request.headers.add("Idempotency-Key", format("key-{}", token));
  // Two that are one.
  if (has_key && fibers.chance(0.1)) {
    fibers.spawn(Fibers::kWorld, [this, request, token] { submit(request, token, true); });
  }
  submit(request, token, has_key);
  if (!has_key || !fibers.chance(0.1)) return;
  body["priority"] = 7;
  request.body = body.dump();
  Reply other = insist(request, true);
  // Unless the job was removed, and its key with it.
  if (other && other->status != 422 && !ledger_.is_removed(id_in(*other)) && ledger_.jobs().size() > 0) {
    world_.note("the key of another request was answered with {}", other->status);
    if (other->status != 201) world_.violate("a key that was used before is answered otherwise");
  }
}

void Clients::submit(const http::Request& request, int64_t token, bool has_key) {
  Reply reply = insist(request, has_key);
  if (!reply) return;
  if (reply->status / 100 != 2) return world_.violate(format("{}: {}", reply->status, reply->body));
  ledger_.acknowledged(token, id_in(*reply));
}

std::string Clients::upload(int64_t first, int64_t count) {
  std::string lines;
  for (int64_t i = 0; i < count; ++i) {
    std::string prompt = item_prompt(world_, first + i);
    json line = {{"custom_id", prompt},
                 {"method", "POST"},
                 {"url", "/v1/completions"},
                 {"body", {{"model", "m"}, {"prompt", prompt}}}};
    lines += line.dump() + "\n";
  }
  std::string form =
      "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
      "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n" +
      lines + "\r\n--b--\r\n";
  Reply reply = insist({.method = "POST",
                        .path = "/v1/files",
                        .headers = {{"Content-Type", "multipart/form-data; boundary=b"}},
                        .body = form},
                       true);
  return json::parse(reply->body).value("id", "");
}

void Clients::submit_batch() {
  constexpr int64_t kMaxItems = 8;
  Fibers& fibers = *world_.fibers;
  int64_t token = ++last_token_;
  json body = {{"input_file_id", upload(token * 1000, 1 + fibers.below(kMaxItems))},
               {"endpoint", "/v1/completions"},
               {"completion_window", fibers.chance(0.2) ? "20s" : "24h"},
               {"max_model_len", token}};
  if (fibers.chance(0.4)) body["replicas"] = 1 + fibers.below(3);
  http::Request request{.method = "POST",
                        .path = "/v1/batches",
                        .headers = {{"Idempotency-Key", format("key-{}", token)}},
                        .body = body.dump()};
  submit(request, token, true);
}

void Clients::act(JobId job, const std::string& what) {
  world_.note("a client asks to {} {}", what, job_name(job));
  Reply reply = insist({.method = "POST", .path = format("/v1/jobs/{}/{}", job_name(job), what)}, true);
  bool known =
      reply->status == 200 || reply->status == 409 || (reply->status == 404 && ledger_.is_removed(job));
  if (!known) world_.violate(format("{} {}: {}", what, job_name(job), reply->body));
}

void Clients::retry(JobId job) {
  std::string key = format("retry-{}", ++last_token_);
  ledger_.may_be_retried(job);
  (void)insist({.method = "POST",
                .path = format("/v1/jobs/{}/retry", job_name(job)),
                .headers = {{"Idempotency-Key", key}}},
               true);
}

// What is shown is durable, and never older than what is known to be.
void Clients::look(JobId job) {
  int64_t known = ledger_.version_of(job);
  http::Request request{.method = "GET", .path = "/v1/jobs/" + job_name(job)};
  if (world_.fibers->chance(0.5)) request.query = "wait=5";
  Reply reply = send(request);
  if (!reply || reply->status >= 500) return;
  const std::string* tag = reply->headers.find("ETag");
  if (reply->status == 404 && ledger_.is_removed(job)) return;
  if (tag == nullptr || std::stoll(tag->substr(1)) < known) {
    world_.violate(format("{} was shown as it was before", job_name(job)));
  }
}

// Whatever is cut off, and whenever: the numbers go on from what was asked for.
void Clients::follow(JobId job) {
  Fibers& fibers = *world_.fibers;
  int64_t after = fibers.below(ledger_.version_of(job) + 1);
  bool complete = false;
  std::optional<std::string> text = exchange({.method = "GET",
                                              .path = format("/v1/jobs/{}/events", job_name(job)),
                                              .headers = {{"Last-Event-ID", std::to_string(after)}}},
                                             fibers.now() + fibers.between(0, 40),
                                             complete);
  if (!text || text->find(" 200 ") > text->find('\r')) return;
  const int64_t first = after;
  const std::string field = "\r\nid: ";
  for (size_t at = text->find(field); at != std::string::npos; at = text->find(field, at + 1)) {
    int64_t number = std::stoll(text->substr(at + field.size()));
    if (number != ++after)
      world_.violate(format("the stream of {} has {} before {}", job_name(job), number, after));
  }
  world_.note("a client followed {} from {} to {}", job_name(job), first, after);
}

void Clients::close_everything() {
  for (JobId job : ledger_.jobs()) {
    Reply reply = insist({.method = "GET", .path = "/v1/jobs/" + job_name(job)}, true);
    json shown = json::parse(reply->body, nullptr, false);
    if (reply->status != 200) continue;
    bool serves = shown["type"] == "serve";
    bool suspended = shown["state"] == "SUSPENDED" || shown["intent"] == "suspend";
    if (suspended && !serves) act(job, "resume");
    if (serves) act(job, "cancel");
  }
}

}  // namespace llm_dist::cluster::simulation
