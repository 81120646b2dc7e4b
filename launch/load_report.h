// What a load run amounts to: throughputs and latency distributions under the names that users of other
// servers' benchmarks know.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "launch/load_generator.h"

namespace llm_dist::launch {

// In milliseconds. The deviation is the population's; percentiles are interpolated linearly between the two
// nearest values. NaN: nothing was measured, "-" in tables and null in JSON.
struct Distribution {
  double mean = kNotMeasured;
  double median = kNotMeasured;
  double std = kNotMeasured;
  double p90 = kNotMeasured;
  double p99 = kNotMeasured;

  static constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();
};
Distribution distribution_of_seconds(std::vector<double> seconds);

struct LoadSummary {
  double request_rate = 0;  // asked for, may be infinite
  double seconds = 0;
  size_t completed = 0;
  size_t failed = 0;
  size_t given_up = 0;
  size_t not_sent = 0;
  size_t peak_concurrency = 0;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  double request_throughput = 0;  // completed requests a second
  double output_throughput = 0;   // tokens a second
  double total_token_throughput = 0;
  Distribution ttft, tpot, itl, e2el;
  std::map<std::string, size_t> errors;               // by kind
  std::map<std::string, std::string> error_messages;  // the first of each kind
};
// Failed requests count in `failed` and `errors` only.
LoadSummary summarize(const LoadRun& run, double request_rate);

// A JSON object. An infinite rate is "inf".
std::string load_summary_json(const LoadSummary& summary);
// For people, as lines.
std::string load_summary_table(const LoadSummary& summary);
// Of a sweep: the head, and a line a run.
std::string load_sweep_head();
std::string load_sweep_line(const LoadSummary& summary);
// A line for each kind of error.
std::string load_error_lines(const LoadSummary& summary);
// "inf" or the number.
std::string rate_text(double request_rate);

// The latency–throughput plot of a sweep, as SVG.
std::string load_plot_svg(const std::vector<LoadSummary>& sweep, const std::string& title);

}  // namespace llm_dist::launch
