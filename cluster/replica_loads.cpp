#include "cluster/replica_loads.h"

#include <algorithm>
#include <charconv>

#include "src/http/async_client.h"

namespace llm_dist::cluster {
namespace {

constexpr uint64_t kMaxMetricsBytes = 8 << 20;

ReplicaLoad read_load(std::string_view text, int64_t at_us) {
  auto value = [&](std::string_view name) { return metric_sum(text, name).value_or(0); };
  return {.at_us = at_us,
          .requests_running = value("llm_dist_num_requests_running"),
          .requests_waiting = value("llm_dist_num_requests_waiting"),
          .kv_cache_usage = value("llm_dist_kv_cache_usage_perc"),
          .prompt_tokens = value("llm_dist_prompt_tokens_total"),
          .generated_tokens = value("llm_dist_generation_tokens_total")};
}

}  // namespace

std::optional<double> metric_sum(std::string_view text, std::string_view name) {
  std::optional<double> sum;
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.starts_with(name) || line.size() == name.size()) continue;
    if (line[name.size()] != ' ' && line[name.size()] != '{') continue;
    size_t blank = line.rfind(' ');
    double value = 0;
    auto [rest, error] = std::from_chars(line.data() + blank + 1, line.data() + line.size(), value);
    if (error == std::errc() && rest == line.data() + line.size()) sum = sum.value_or(0) + value;
  }
  return sum;
}

Result<ReplicaLoads::Loads> ReplicaLoads::ask_all() const {
  ASSIGN_OR_RETURN(std::vector<Job> jobs,
                   parts_.store.jobs({.states = {JobState::kRunning}, .limit = kMaxReplicas}));
  Loads loads;
  http::AsyncClient client({.max_body_bytes = kMaxMetricsBytes});
  Deadline deadline = Deadline::after(parts_.timeout);
  for (const Job& job : jobs) {
    ASSIGN_OR_RETURN(std::vector<Attempt> attempts, parts_.store.attempts(job.id));
    if (attempts.empty() || attempts.back().endpoint.empty()) continue;
    Key key{job.id, attempts.back().number};
    http::ClientRequest request{.url = attempts.back().endpoint + "/metrics"};
    request.headers.add("Authorization", "Bearer " + parts_.secrets.api_key(key.first, key.second));
    client.start(std::move(request), deadline, {}, [this, &loads, key](Result<http::Response> answer) {
      bool well = answer.ok() && answer.value().status == 200;
      if (well) loads.emplace(key, read_load(answer.value().body, parts_.now_us()));
    });
  }
  client.run(deadline);
  return loads;
}

Status ReplicaLoads::sample() {
  ASSIGN_OR_RETURN(Loads loads, ask_all());
  std::lock_guard lock(mutex_);
  Throughput sum{.at_us = parts_.now_us()};
  for (auto& [key, load] : loads) {
    auto before = loads_.find(key);
    if (before == loads_.end() || load.at_us <= before->second.at_us) continue;
    double seconds = seconds_of(load.at_us - before->second.at_us);
    auto rate = [&](double now, double then) { return std::max(0.0, now - then) / seconds; };
    load.generated_per_second = rate(load.generated_tokens, before->second.generated_tokens);
    sum.generated_per_second += *load.generated_per_second;
    sum.prompt_per_second += rate(load.prompt_tokens, before->second.prompt_tokens);
  }
  loads_ = std::move(loads);
  history_.push_back(sum);
  if (history_.size() > parts_.max_history) history_.pop_front();
  return ok_status();
}

std::optional<ReplicaLoad> ReplicaLoads::of(JobId job, int64_t attempt) const {
  std::lock_guard lock(mutex_);
  auto found = loads_.find({job, attempt});
  return found == loads_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<Throughput> ReplicaLoads::history() const {
  std::lock_guard lock(mutex_);
  return {history_.begin(), history_.end()};
}

}  // namespace llm_dist::cluster
