#include "launch/registration.h"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "src/base/format.h"
#include "src/base/log.h"
#include "src/http/client.h"

namespace llm_dist::launch {
namespace {

constexpr auto kBetween = std::chrono::seconds(1);
constexpr auto kPatience = std::chrono::seconds(5);

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Says nothing about this replica: it was too slow, others ask too much, the coordinator has failed.
bool is_for_now(int status) { return status == 408 || status == 429 || status >= 500; }

}  // namespace

Registration::Registration(std::string url, std::string body, std::string certificate_file)
    : url_(std::move(url)),
      body_(std::move(body)),
      certificate_file_(std::move(certificate_file)),
      thread_([this] { run(); }) {}

Registration::~Registration() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

void Registration::run() {
  while (!post()) {
    std::unique_lock lock(mutex_);
    if (stop_.wait_for(lock, kBetween, [this] { return stopping_; })) return;
  }
}

bool Registration::post() {
  auto answer = http::request(
      {.method = "POST", .url = url_, .headers = {{"Content-Type", "application/json"}}, .body = body_},
      Deadline::after(kPatience),
      {.tls_pinned_file = certificate_file_});
  if (!answer.ok()) {
    tell(static_cast<int>(answer.status().code()), answer.status().message());
    return false;
  }
  int status = answer.value().status;
  if (is_for_now(status)) {
    tell(status, format("it answers {} {}", status, answer.value().body));
    return false;
  }
  if (status == 200) {
    log_info("registered with the coordinator");
  } else {
    log_error("the coordinator does not want this replica: {}", answer.value().body);
  }
  return true;
}

// Each kind once: a coordinator that is away may stay away for long.
void Registration::tell(int kind, const std::string& what) {
  if (std::exchange(told_, kind) == kind) return;
  log_warning("cannot register with the coordinator at {}, and tries again: {}", url_, what);
}

std::unique_ptr<Registration> register_with_coordinator(const std::function<std::string()>& endpoint) {
  std::string url = environment("LLM_DIST_REGISTER_URL");
  if (url.empty()) return nullptr;
  std::string job;
  int64_t attempt = 0;
  std::istringstream(environment("LLM_DIST_REGISTER_AS")) >> job >> attempt;
  nlohmann::json body = {{"job", job},
                         {"attempt", attempt},
                         {"secret", environment("LLM_DIST_REGISTER_SECRET")},
                         {"endpoint", endpoint()}};
  return std::make_unique<Registration>(url, body.dump(), environment("LLM_DIST_REGISTER_CA"));
}

}  // namespace llm_dist::launch
