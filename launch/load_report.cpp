#include "launch/load_report.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "launch/svg_plot.h"
#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

using nlohmann::json;

struct NamedDistribution {
  const char* key;
  const char* title;
  Distribution LoadSummary::* values;
};
constexpr NamedDistribution kDistributions[] = {
    {"ttft", "time to first token", &LoadSummary::ttft},
    {"tpot", "time per output token", &LoadSummary::tpot},
    {"itl", "inter-token latency", &LoadSummary::itl},
    {"e2el", "end-to-end latency", &LoadSummary::e2el},
};

// `sorted` is not empty.
double percentile(const std::vector<double>& sorted, double fraction) {
  double position = fraction * static_cast<double>(sorted.size() - 1);
  auto below = static_cast<size_t>(position);
  size_t above = std::min(below + 1, sorted.size() - 1);
  double weight = position - static_cast<double>(below);
  return sorted[below] * (1 - weight) + sorted[above] * weight;
}

__attribute__((format(printf, 1, 2))) std::string line(const char* pattern, ...) {
  char buffer[256];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(buffer, sizeof(buffer), pattern, arguments);
  va_end(arguments);
  return std::string(buffer) + "\n";
}

std::string figure(double value, int decimals) {
  if (std::isnan(value)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

void add_totals(const LoadRun& run, LoadSummary& summary) {
  for (const RequestRecord& record : run.records) {
    if (record.ok()) {
      ++summary.completed;
      summary.input_tokens += record.prompt_tokens;
      summary.output_tokens += record.output_tokens;
    } else {
      ++summary.failed;
      ++summary.errors[record.error_kind];
      summary.error_messages.try_emplace(record.error_kind, record.error_message);
    }
  }
}

void add_latencies(const LoadRun& run, LoadSummary& summary) {
  std::vector<double> first, per_token, between, whole;
  for (const RequestRecord& record : run.records) {
    if (!record.ok()) continue;
    first.push_back(record.time_to_first_token);
    whole.push_back(record.end_to_end);
    between.insert(between.end(), record.between_tokens.begin(), record.between_tokens.end());
    if (record.output_tokens > 1)
      per_token.push_back((record.end_to_end - record.time_to_first_token) /
                          static_cast<double>(record.output_tokens - 1));
  }
  summary.ttft = distribution_of_seconds(std::move(first));
  summary.tpot = distribution_of_seconds(std::move(per_token));
  summary.itl = distribution_of_seconds(std::move(between));
  summary.e2el = distribution_of_seconds(std::move(whole));
}

}  // namespace

Distribution distribution_of_seconds(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::sort(seconds.begin(), seconds.end());
  auto count = static_cast<double>(seconds.size());
  double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
  double squares = 0;
  for (double value : seconds) squares += (value - mean) * (value - mean);
  return {.mean = mean * 1e3,
          .median = percentile(seconds, 0.5) * 1e3,
          .std = std::sqrt(squares / count) * 1e3,
          .p90 = percentile(seconds, 0.9) * 1e3,
          .p99 = percentile(seconds, 0.99) * 1e3};
}

LoadSummary summarize(const LoadRun& run, double request_rate) {
  LoadSummary summary{.request_rate = request_rate,
                      .seconds = run.seconds,
                      .given_up = run.given_up,
                      .not_sent = run.not_sent,
                      .peak_concurrency = run.peak_concurrency};
  add_totals(run, summary);
  add_latencies(run, summary);
  if (run.seconds > 0) {
    summary.request_throughput = static_cast<double>(summary.completed) / run.seconds;
    summary.output_throughput = static_cast<double>(summary.output_tokens) / run.seconds;
    summary.total_token_throughput =
        static_cast<double>(summary.input_tokens + summary.output_tokens) / run.seconds;
  }
  return summary;
}

std::string rate_text(double request_rate) {
  return std::isinf(request_rate) ? "inf" : format("{}", request_rate);
}

std::string load_summary_json(const LoadSummary& summary) {
  json result = {{"duration_seconds", summary.seconds},
                 {"completed", summary.completed},
                 {"failed", summary.failed},
                 {"errors", summary.errors},
                 {"error_messages", summary.error_messages},
                 {"interrupted", summary.given_up + summary.not_sent > 0},
                 {"peak_concurrency", summary.peak_concurrency},
                 {"total_input_tokens", summary.input_tokens},
                 {"total_output_tokens", summary.output_tokens},
                 {"request_throughput", summary.request_throughput},
                 {"output_throughput", summary.output_throughput},
                 {"total_token_throughput", summary.total_token_throughput}};
  result["request_rate"] = std::isinf(summary.request_rate) ? json("inf") : json(summary.request_rate);
  for (const NamedDistribution& named : kDistributions) {
    const Distribution& values = summary.*named.values;
    std::string suffix = std::string("_") + named.key + "_ms";
    result["mean" + suffix] = values.mean;
    result["median" + suffix] = values.median;
    result["std" + suffix] = values.std;
    result["p90" + suffix] = values.p90;
    result["p99" + suffix] = values.p99;
  }
  return result.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string load_error_lines(const LoadSummary& summary) {
  std::string text;
  if (summary.given_up + summary.not_sent > 0)
    text += line("interrupted: %zu requests given up, %zu not sent", summary.given_up, summary.not_sent);
  for (const auto& [kind, count] : summary.errors) {
    std::string message = summary.error_messages.at(kind).substr(0, 160);
    std::replace(message.begin(), message.end(), '\n', ' ');
    text += line("failed %zu × %s: %s", count, kind.c_str(), message.c_str());
  }
  return text;
}

std::string load_summary_table(const LoadSummary& summary) {
  std::string text;
  text += line("%-24s %12zu", "completed", summary.completed);
  text += line("%-24s %12zu", "failed", summary.failed);
  text += line("%-24s %12.2f s", "duration", summary.seconds);
  text += line("%-24s %12lld", "input tokens", static_cast<long long>(summary.input_tokens));
  text += line("%-24s %12lld", "output tokens", static_cast<long long>(summary.output_tokens));
  text += line("%-24s %12zu", "peak concurrency", summary.peak_concurrency);
  text += line("%-24s %12.2f requests/s", "request throughput", summary.request_throughput);
  text += line("%-24s %12.1f tokens/s", "output throughput", summary.output_throughput);
  text += line("%-24s %12.1f tokens/s", "total token throughput", summary.total_token_throughput);
  text += line("\n%-24s %12s %9s %9s %9s %9s", "ms", "mean", "median", "std", "p90", "p99");
  for (const NamedDistribution& named : kDistributions) {
    const Distribution& values = summary.*named.values;
    text += line("%-24s %12s %9s %9s %9s %9s",
                 named.title,
                 figure(values.mean, 2).c_str(),
                 figure(values.median, 2).c_str(),
                 figure(values.std, 2).c_str(),
                 figure(values.p90, 2).c_str(),
                 figure(values.p99, 2).c_str());
  }
  return text + load_error_lines(summary);
}

std::string load_sweep_head() {
  return line("%8s %9s %6s %10s %12s %12s %11s %11s %10s",
              "rate/s",
              "completed",
              "failed",
              "requests/s",
              "out tokens/s",
              "TTFT median",
              "p99 ms",
              "TPOT median",
              "p99 ms");
}

std::string load_sweep_line(const LoadSummary& summary) {
  return line("%8s %9zu %6zu %10.2f %12.1f %12s %11s %11s %10s",
              rate_text(summary.request_rate).c_str(),
              summary.completed,
              summary.failed,
              summary.request_throughput,
              summary.output_throughput,
              figure(summary.ttft.median, 1).c_str(),
              figure(summary.ttft.p99, 1).c_str(),
              figure(summary.tpot.median, 2).c_str(),
              figure(summary.tpot.p99, 2).c_str());
}

std::string load_plot_svg(const std::vector<LoadSummary>& sweep, const std::string& title) {
  auto panel = [&](const char* y_label, Distribution LoadSummary::* values) {
    PlotPanel result{.x_label = "output tokens a second", .y_label = y_label, .series = {}};
    PlotSeries median{.name = "median", .points = {}};
    PlotSeries p99{.name = "p99", .points = {}};
    for (const LoadSummary& summary : sweep) {
      const Distribution& latency = summary.*values;
      if (std::isnan(latency.median)) continue;
      median.points.push_back(
          {summary.output_throughput, latency.median, rate_text(summary.request_rate) + "/s"});
      p99.points.push_back({summary.output_throughput, latency.p99, ""});
    }
    result.series = {median, p99};
    return result;
  };
  return plot_svg(title,
                  {panel("time to first token, ms", &LoadSummary::ttft),
                   panel("time per output token, ms", &LoadSummary::tpot)});
}

}  // namespace llm_dist::launch
