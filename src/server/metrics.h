// Metrics: what /metrics shows. The only place that names Prometheus.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "src/engine/engine_stats.h"

namespace llm_dist::server {

// Any thread.
class Metrics {
 public:
  explicit Metrics(const std::string& version);
  ~Metrics();

  void observe_time_to_first_token(double seconds);
  void observe_inter_token_latency(double seconds);
  void observe_queue_time(double seconds);       // arrival to the first step of one choice
  void observe_prefill_time(double seconds);     // first step to first token of one choice
  void observe_decode_time(double seconds);      // first to last token of one choice
  void observe_e2e_latency(double seconds);      // arrival to last token of one request
  void count_finished(std::string_view reason);  // of one choice: "stop", "length", "abort", "error"

  void count_refused(int status);  // a request that ended with an error

  // The text format 0.0.4. `stats`: null while there is no engine.
  std::string render(const engine::EngineStats* stats) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llm_dist::server
