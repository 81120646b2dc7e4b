#include "cluster/api/overview_api.h"

#include <nlohmann/json.hpp>

#include "cluster/api/api_reply.h"
#include "cluster/job_spec.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::ordered_json;

ordered_json load_json(const std::optional<ReplicaLoad>& load) {
  if (!load) return nullptr;
  ordered_json out;
  out["at"] = seconds_of(load->at_us);
  out["requests_running"] = load->requests_running;
  out["requests_waiting"] = load->requests_waiting;
  out["kv_cache_usage"] = load->kv_cache_usage;
  out["prompt_tokens_total"] = load->prompt_tokens;
  out["generation_tokens_total"] = load->generated_tokens;
  out["generation_tokens_per_second"] =
      load->generated_per_second ? ordered_json(*load->generated_per_second) : ordered_json(nullptr);
  return out;
}

ordered_json replica_json(const Job& job, const Attempt& attempt, const std::optional<ReplicaLoad>& load) {
  JobSpec spec = read_job_spec(job.spec);
  ordered_json out;
  out["job"] = job_name(job.id);
  out["type"] = to_string(job.kind);
  out["state"] = to_string(job.state);
  out["model"] = spec.model;
  out["tp"] = spec.tp;
  out["pp"] = spec.pp;
  out["attempt"] = attempt.number;
  out["endpoint"] = attempt.endpoint.empty() ? ordered_json(nullptr) : ordered_json(attempt.endpoint);
  out["started_at"] = seconds_of(attempt.started_us);
  out["load"] = load_json(load);
  return out;
}

ordered_json throughput_json(const std::vector<Throughput>& history) {
  ordered_json out = ordered_json::array();
  for (const Throughput& each : history) {
    ordered_json point;
    point["at"] = seconds_of(each.at_us);
    point["prompt_tokens_per_second"] = each.prompt_per_second;
    point["generation_tokens_per_second"] = each.generated_per_second;
    out.push_back(std::move(point));
  }
  return out;
}

}  // namespace

void OverviewApi::add_routes(http::Router& router) {
  auto handler = [this](const http::Request&, const WriterPtr& writer) { show(writer); };
  router.add("GET", "/v1/overview", on_worker(parts_.workers, handler));
}

void OverviewApi::show(const WriterPtr& writer) const {
  Result<std::string> body = render();
  writer->send(body.ok() ? http::Response{.body = body.value()} : error_reply(body.status()));
}

Result<std::string> OverviewApi::render() const {
  using enum JobState;
  ASSIGN_OR_RETURN(JobCounts counts, parts_.store.counts());
  ASSIGN_OR_RETURN(std::vector<Job> jobs,
                   parts_.store.jobs({.states = {kStarting, kRunning, kRecovering, kCancelling, kFinalizing},
                                      .limit = kMaxReplicas}));
  ASSIGN_OR_RETURN(std::vector<HeldSlots> held, parts_.store.held_slots());
  int slots_used = 0;
  for (const HeldSlots& each : held) slots_used += each.slots;
  ordered_json replicas = ordered_json::array();
  for (const Job& job : jobs) {
    ASSIGN_OR_RETURN(std::vector<Attempt> attempts, parts_.store.attempts(job.id));
    if (attempts.empty()) continue;
    const Attempt& last = attempts.back();
    if (job.kind != JobKind::kBench) {
      replicas.push_back(replica_json(job, last, parts_.loads.of(job.id, last.number)));
    }
  }
  ordered_json out;
  out["object"] = "overview";
  out["version"] = parts_.version;
  out["epoch"] = parts_.store.epoch();
  out["at"] = seconds_of(parts_.now_us());
  out["slots"] = {{"total", parts_.num_slots}, {"used", slots_used}};
  for (int i = 0; i < kNumJobStates; ++i) {
    auto state = static_cast<JobState>(i);
    out["jobs"][std::string(to_string(state))] = counts.of(state);
  }
  out["replicas"] = std::move(replicas);
  out["throughput"] = throughput_json(parts_.loads.history());
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace llm_dist::cluster
