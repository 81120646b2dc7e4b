#include "src/server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <sstream>
#include <vector>

namespace llm_dist::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Buckets = prometheus::Histogram::BucketBoundaries;

prometheus::Histogram& histogram(prometheus::Registry& registry,
                                 const char* name,
                                 const char* help,
                                 const Buckets& buckets) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
}

// vLLM's bounds, so that its dashboards fit.
Buckets first_token_buckets() {
  return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
          0.75,  1,     2.5,  5,    7.5,  10,   20,   40,  80,   160};
}
Buckets token_buckets() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10};
}
Buckets request_buckets() {
  return {0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920};
}

MetricFamily single(const char* name, const char* help, MetricType type, double value) {
  ClientMetric metric;
  metric.counter.value = value;  // the serializer reads the one that `type` names
  metric.gauge.value = value;
  return {name, help, type, {metric}};
}

ClientMetric histogram_of(const engine::DurationHistogram& steps) {
  ClientMetric metric;
  metric.histogram.sample_count = steps.count;
  metric.histogram.sample_sum = steps.sum_seconds;
  uint64_t cumulative = 0;
  for (int i = 0; i < engine::DurationHistogram::kBuckets; ++i) {
    cumulative += steps.counts[static_cast<size_t>(i)];
    bool last = i == engine::DurationHistogram::kBuckets - 1;
    double bound =
        last ? std::numeric_limits<double>::infinity() : engine::DurationHistogram::upper_bound_seconds(i);
    metric.histogram.bucket.push_back({cumulative, bound});
  }
  return metric;
}

MetricFamily step_times(const std::vector<engine::RankMeters>& ranks) {
  MetricFamily family{"llm_dist_step_time_seconds",
                      "Time that a rank's device is busy with a step, collectives included",
                      MetricType::Histogram,
                      {}};
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    family.metric.push_back(histogram_of(ranks[rank].step_seconds));
    family.metric.back().label = {{"rank", std::to_string(rank)}};
  }
  return family;
}

// Where collectives are not timed the family is empty, and not shown.
MetricFamily collective_times(const std::vector<engine::RankMeters>& ranks) {
  MetricFamily family{"llm_dist_collective_time_seconds",
                      "Time that a rank spends in collectives, waiting for its peers included",
                      MetricType::Summary,
                      {}};
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t op = 0; op < engine::kNumCollectives; ++op) {
      const engine::CollectiveStats& stats = ranks[rank].collectives[op];
      if (stats.calls == 0) continue;
      ClientMetric& metric = family.metric.emplace_back();
      metric.label = {{"rank", std::to_string(rank)}, {"op", std::string(engine::kCollectiveNames[op])}};
      metric.summary.sample_count = stats.calls;
      metric.summary.sample_sum = stats.seconds;
    }
  }
  return family;
}

double kv_usage(const sched::SchedulerStats& stats) {
  if (stats.num_total_blocks == 0) return 0;
  return 1.0 - static_cast<double>(stats.num_free_blocks) / stats.num_total_blocks;
}

void add_engine(const engine::EngineStats& stats, std::vector<MetricFamily>& families) {
  const sched::SchedulerStats& sched = stats.scheduler;
  auto gauge = [&](const char* name, const char* help, double value) {
    families.push_back(single(name, help, MetricType::Gauge, value));
  };
  auto counter = [&](const char* name, const char* help, uint64_t value) {
    families.push_back(single(name, help, MetricType::Counter, static_cast<double>(value)));
  };
  gauge("llm_dist_num_requests_running", "Sequences that hold a slot", sched.num_running);
  gauge("llm_dist_num_requests_waiting",
        "Sequences that wait for one, preempted ones included",
        sched.num_waiting);
  gauge("llm_dist_kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1", kv_usage(sched));
  gauge("llm_dist_kv_cache_unused_perc",
        "Share of the allocated KV bytes that hold no token",
        stats.kv_waste());
  counter("llm_dist_num_preemptions_total", "Sequences that gave way to others", sched.num_preemptions);
  counter("llm_dist_prompt_tokens_total", "Prompt tokens of started sequences", sched.prompt_tokens_total);
  counter("llm_dist_generation_tokens_total", "Tokens generated", sched.generation_tokens_total);
  counter("llm_dist_steps_total", "Steps collected", stats.steps);
  // Nothing is looked up while there is no prefix cache.
  counter("llm_dist_prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache", 0);
  counter("llm_dist_prefix_cache_hits_total", "Prompt tokens found there", 0);
  gauge("llm_dist_rank_step_skew_seconds",
        "A step's own time, without collectives, of the slowest rank less that of the fastest",
        stats.rank_step_skew_seconds);
  gauge("llm_dist_pipeline_bubble_fraction",
        "Share of the time with steps in flight in which a stage ran none, mean over the ranks",
        stats.pipeline_bubble_fraction);
  families.push_back({"llm_dist_step_latency_seconds",
                      "One step, from its plan to its tokens",
                      MetricType::Histogram,
                      {histogram_of(stats.step_seconds)}});
  families.push_back(step_times(stats.ranks));
  families.push_back(collective_times(stats.ranks));
}

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  prometheus::Histogram& first_token;
  prometheus::Histogram& inter_token;
  prometheus::Histogram& queue;
  prometheus::Histogram& prefill;
  prometheus::Histogram& decode;
  prometheus::Histogram& e2e;
  prometheus::Family<prometheus::Counter>& finished;
  prometheus::Family<prometheus::Counter>& refused;

  Impl()
      : first_token(histogram(registry,
                              "llm_dist_time_to_first_token_seconds",
                              "From a request's arrival to its first token",
                              first_token_buckets())),
        inter_token(histogram(registry,
                              "llm_dist_inter_token_latency_seconds",
                              "Between two tokens of a choice",
                              token_buckets())),
        queue(histogram(registry,
                        "llm_dist_request_queue_time_seconds",
                        "From a request's arrival to the first step of a choice",
                        request_buckets())),
        prefill(histogram(registry,
                          "llm_dist_request_prefill_time_seconds",
                          "From a choice's first step to its first token",
                          request_buckets())),
        decode(histogram(registry,
                         "llm_dist_request_decode_time_seconds",
                         "From a choice's first token to its last",
                         request_buckets())),
        e2e(histogram(registry,
                      "llm_dist_e2e_request_latency_seconds",
                      "From a request's arrival to its last token",
                      request_buckets())),
        finished(prometheus::BuildCounter()
                     .Name("llm_dist_request_success_total")
                     .Help("Choices that ended, by the reason")
                     .Register(registry)),
        refused(prometheus::BuildCounter()
                    .Name("llm_dist_requests_refused_total")
                    .Help("Requests answered with an error, by its status")
                    .Register(registry)) {}
};

Metrics::Metrics(const std::string& version) : impl_(std::make_unique<Impl>()) {
  for (const char* reason : {"stop", "length", "abort", "error"})
    impl_->finished.Add({{"finished_reason", reason}});
  prometheus::BuildGauge()
      .Name("llm_dist_build_info")
      .Help("1; the labels say what runs")
      .Register(impl_->registry)
      .Add({{"version", version}})
      .Set(1);
}
Metrics::~Metrics() = default;

void Metrics::observe_time_to_first_token(double seconds) { impl_->first_token.Observe(seconds); }
void Metrics::observe_inter_token_latency(double seconds) { impl_->inter_token.Observe(seconds); }
void Metrics::observe_queue_time(double seconds) { impl_->queue.Observe(seconds); }
void Metrics::observe_prefill_time(double seconds) { impl_->prefill.Observe(seconds); }
void Metrics::observe_decode_time(double seconds) { impl_->decode.Observe(seconds); }
void Metrics::observe_e2e_latency(double seconds) { impl_->e2e.Observe(seconds); }
void Metrics::count_finished(std::string_view reason) {
  impl_->finished.Add({{"finished_reason", std::string(reason)}}).Increment();
}

void Metrics::count_refused(int status) {
  impl_->refused.Add({{"status", std::to_string(status)}}).Increment();
}

std::string Metrics::render(const engine::EngineStats* stats) const {
  std::vector<MetricFamily> families = impl_->registry.Collect();
  if (stats != nullptr) add_engine(*stats, families);
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

}  // namespace llm_dist::server
