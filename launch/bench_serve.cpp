// `llm-dist bench serve`: a running server under load, from outside.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "launch/bench.h"
#include "launch/exit_code.h"
#include "launch/load_generator.h"
#include "launch/load_prompts.h"
#include "launch/load_report.h"
#include "launch/progress_bar.h"
#include "launch/random_lengths.h"
#include "launch/server_flags.h"
#include "launch/shutdown_signal.h"
#include "launch/whole_file.h"
#include "src/base/open_files.h"

namespace llm_dist::launch {
namespace {

using nlohmann::json;

struct ServeLoadFlags {
  ServerFlags server;
  PromptOptions prompts;
  std::string endpoint = "completions";
  int num_prompts = 100;
  int num_warmups = 1;
  std::vector<double> request_rates = {std::numeric_limits<double>::infinity()};
  double burstiness = 1;
  int max_concurrency = 0;
  uint64_t seed = 0;
  double request_timeout_seconds = 600;
  std::string result_file;
  std::string plot_file;
};

std::string check_rate(const std::string& text) {
  char* end = nullptr;
  double rate = std::strtod(text.c_str(), &end);
  bool whole = !text.empty() && *end == '\0';
  return whole && rate > 0 ? "" : text + " is no rate: a number of requests a second, or inf";
}

// The command line, for the report: what a flag tells the server in confidence stays out of it.
std::string command_without_secrets(const ServerFlags& flags) {
  std::string command = typed_command();
  std::vector<std::string> secrets = flags.headers;
  secrets.push_back(flags.api_key);
  for (const std::string& secret : secrets) {
    size_t at = secret.empty() ? std::string::npos : command.find(secret);
    if (at != std::string::npos) command.replace(at, secret.size(), "…");
  }
  return command;
}

class ServeBench {
 public:
  ServeBench(const ServeLoadFlags& flags, ShutdownSignal& signal, ServerAccess server)
      : flags_(flags), signal_(signal), server_(std::move(server)), client_(server_.client) {}

  Status run();
  bool interrupted() const { return interrupted_; }

 private:
  LoadOptions load_options(double request_rate) const;
  Status warm_up(PromptMaker& prompts);
  Result<LoadSummary> measure(PromptMaker& prompts, size_t index);
  void print(const LoadSummary& summary) const;
  json facts(const PromptMaker& prompts, const std::string& model) const;
  Status save(const PromptMaker& prompts, const std::string& model, const std::vector<LoadSummary>& sweep);
  bool is_sweep() const { return flags_.request_rates.size() > 1; }

  const ServeLoadFlags& flags_;
  ShutdownSignal& signal_;
  ServerAccess server_;
  http::Client client_;
  bool interrupted_ = false;
};

LoadOptions ServeBench::load_options(double request_rate) const {
  return {.path = flags_.endpoint == "chat" ? "/v1/chat/completions" : "/v1/completions",
          .request_rate = request_rate,
          .burstiness = flags_.burstiness,
          .max_concurrency = flags_.max_concurrency,
          .seed = flags_.seed,
          .request_timeout_seconds = flags_.request_timeout_seconds};
}

// What is wrong with every request shows here, before the measurement.
Status ServeBench::warm_up(PromptMaker& prompts) {
  if (flags_.num_warmups == 0) return ok_status();
  ASSIGN_OR_RETURN(std::vector<std::string> bodies,
                   prompts.make(static_cast<size_t>(flags_.num_warmups), ~flags_.seed));
  LoadRun run = run_load(
      server_, load_options(std::numeric_limits<double>::infinity()), bodies, [&](const LoadProgress&) {
        interrupted_ = signal_.is_raised();
        return !interrupted_;
      });
  for (const RequestRecord& record : run.records) {
    if (!record.ok())
      return unavailable(
          format("the first request failed ({}): {}", record.error_kind, record.error_message));
  }
  return ok_status();
}

Result<LoadSummary> ServeBench::measure(PromptMaker& prompts, size_t index) {
  // Other prompts at each rate: a server that keeps prefixes must not know them.
  ASSIGN_OR_RETURN(std::vector<std::string> bodies,
                   prompts.make(static_cast<size_t>(flags_.num_prompts), flags_.seed + index));
  ProgressBar bar;
  double rate = flags_.request_rates[index];
  LoadRun run = run_load(server_, load_options(rate), bodies, [&](const LoadProgress& progress) {
    interrupted_ = interrupted_ || signal_.is_raised();
    bar.show(progress.ended,
             progress.total,
             format("{} running, {} failed, {} s", progress.running, progress.failed, int(progress.seconds)));
    return !interrupted_;
  });
  return summarize(run, rate);
}

void ServeBench::print(const LoadSummary& summary) const {
  std::string text =
      is_sweep() ? load_sweep_line(summary) + load_error_lines(summary) : load_summary_table(summary);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

json ServeBench::facts(const PromptMaker& prompts, const std::string& model) const {
  json result = {{"base_url", server_.base_url},
                 {"endpoint", flags_.endpoint},
                 {"model", model},
                 {"prompts", prompts.kind()},
                 {"num_prompts", flags_.num_prompts},
                 {"random_input_len", flags_.prompts.input_len},
                 {"random_range_ratio", flags_.prompts.range_ratio},
                 {"random_output_len", flags_.prompts.output_len},
                 {"ignore_eos", flags_.prompts.ignore_eos},
                 {"temperature", flags_.prompts.temperature},
                 {"burstiness", flags_.burstiness},
                 {"seed", flags_.seed},
                 {"command", command_without_secrets(flags_.server)}};
  result["max_concurrency"] = flags_.max_concurrency > 0 ? json(flags_.max_concurrency) : json(nullptr);
  return result;
}

Status ServeBench::save(const PromptMaker& prompts,
                        const std::string& model,
                        const std::vector<LoadSummary>& sweep) {
  json result = facts(prompts, model);
  if (is_sweep()) {
    result["rows"] = json::array();
    for (const LoadSummary& summary : sweep)
      result["rows"].push_back(json::parse(load_summary_json(summary)));
  } else {
    result.update(json::parse(load_summary_json(sweep.front())));
  }
  RETURN_IF_ERROR(save_result(flags_.result_file, result.dump(2)));
  if (flags_.plot_file.empty()) return ok_status();
  std::string title = format("{}: {} + {} tokens, {} requests at each rate",
                             model,
                             flags_.prompts.input_len,
                             flags_.prompts.output_len,
                             flags_.num_prompts);
  RETURN_IF_ERROR(write_whole_file(flags_.plot_file, load_plot_svg(sweep, title)).with_context("--plot"));
  std::printf("plotted %s\n", flags_.plot_file.c_str());
  return ok_status();
}

Status ServeBench::run() {
  PromptOptions options = flags_.prompts;
  options.chat = flags_.endpoint == "chat";
  if (options.model.empty()) {
    ASSIGN_OR_RETURN(options.model, first_model(client_, server_));
  }
  std::string model = options.model;
  ASSIGN_OR_RETURN(PromptMaker prompts, PromptMaker::create(client_, server_, std::move(options)));
  RETURN_IF_ERROR(warm_up(prompts));
  if (interrupted_) return ok_status();
  std::printf("%s, /v1/%s of %s; %s of %s, %d to generate\n\n",
              server_.base_url.c_str(),
              flags_.endpoint == "chat" ? "chat/completions" : "completions",
              model.c_str(),
              prompts.kind().c_str(),
              length_text(flags_.prompts.input_len, flags_.prompts.range_ratio).c_str(),
              flags_.prompts.output_len);
  if (is_sweep()) std::fputs(load_sweep_head().c_str(), stdout);
  std::vector<LoadSummary> sweep;
  for (size_t i = 0; i < flags_.request_rates.size() && !interrupted_; ++i) {
    ASSIGN_OR_RETURN(LoadSummary summary, measure(prompts, i));
    print(summary);
    sweep.push_back(std::move(summary));
  }
  RETURN_IF_ERROR(save(prompts, model, sweep));
  for (const LoadSummary& summary : sweep) {
    if (summary.completed == 0 && !interrupted_) return unavailable("no request was answered");
  }
  return ok_status();
}

int run(const ServeLoadFlags& flags) {
  ShutdownSignal signal;  // before any thread is started
  raise_open_files();     // each request under way has a connection
  Status writable = check_writable("--save-result", flags.result_file);
  if (writable.ok()) writable = check_writable("--plot", flags.plot_file);
  if (!writable.ok()) return report(nullptr, writable);
  auto server = open_access(flags.server);
  if (!server.ok()) return report(nullptr, server.status());
  ServeBench bench(flags, signal, std::move(*server));
  Status status = bench.run();
  if (status.ok() && bench.interrupted()) return kSignalExitBase + SIGINT;
  return report(nullptr, status);
}

void add_traffic_flags(CLI::App& app, ServeLoadFlags& flags) {
  auto* group = app.add_option_group("Load");
  group->add_option("--num-prompts", flags.num_prompts, "Requests at each rate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  group
      ->add_option(
          "--request-rate",
          flags.request_rates,
          "Requests a second, inf: all at once (default); several, for example 1,2,4,8, make a sweep")
      ->delimiter(',')
      ->check(check_rate);
  group
      ->add_option("--burstiness",
                   flags.burstiness,
                   "Shape of the intervals' gamma distribution: 1 is Poisson, less is burstier")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  group->add_option("--max-concurrency", flags.max_concurrency, "Requests in progress at once (0: no limit)")
      ->check(CLI::NonNegativeNumber);
  group
      ->add_option(
          "--num-warmups", flags.num_warmups, "Requests before the measurement; one that fails ends it")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  group->add_option("--request-timeout", flags.request_timeout_seconds, "Seconds that a request may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void add_prompt_flags(CLI::App& app, ServeLoadFlags& flags) {
  auto* group = app.add_option_group("Prompts");
  group->add_option(
      "--model", flags.prompts.model, "Model name in the requests (default: the server's first)");
  group->add_option("--endpoint", flags.endpoint)
      ->check(CLI::IsMember({"completions", "chat"}))
      ->capture_default_str();
  group->add_option("--random-input-len,--input-len", flags.prompts.input_len, "Prompt tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_range_ratio_flag(*group, flags.prompts.range_ratio);
  group->add_option("--random-output-len,--output-len", flags.prompts.output_len, "Tokens to generate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  group->add_option("--temperature", flags.prompts.temperature)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  group->add_option("--seed", flags.seed, "Of prompts and arrival times")->capture_default_str();
  group->add_flag(
      "--ignore-eos,!--no-ignore-eos",
      flags.prompts.ignore_eos,
      "Generate exactly --random-output-len tokens (default); a field that not every server knows");
}

}  // namespace

BenchCommand add_bench_serve(CLI::App& bench) {
  auto flags = std::make_shared<ServeLoadFlags>();
  CLI::App* app = bench.add_subcommand("serve", "A running server under load: throughput and latencies");
  add_server_flags(*app, flags->server);
  add_traffic_flags(*app, *flags);
  add_prompt_flags(*app, *flags);
  add_result_flag(*app, flags->result_file);
  app->add_option("--plot", flags->plot_file, "Draw latency over throughput to this SVG file");
  app->footer(
      "Examples:\n"
      "  llm-dist bench serve --base-url http://127.0.0.1:8000 --num-prompts 200 --request-rate 4\n"
      "  llm-dist bench serve --port 8000 --max-concurrency 16 --random-input-len 512 --random-output-len "
      "64\n"
      "  llm-dist bench serve --request-rate 1,2,4,8 --save-result sweep.json --plot sweep.svg\n"
      "Ctrl-C ends the run and reports what there is.");
  return {app, [flags] { return run(*flags); }};
}

}  // namespace llm_dist::launch
