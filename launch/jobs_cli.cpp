// `llm-dist submit`, `jobs`, `logs`, `cancel`, `top`: the coordinator's API for people.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "cluster/store/job.h"
#include "launch/commands.h"
#include "launch/progress_bar.h"
#include "launch/server_access.h"
#include "src/base/format.h"
#include "src/http/client.h"
#include "src/http/digest.h"

namespace llm_dist::launch {
namespace {

using nlohmann::json;

constexpr double kRequestSeconds = 70;  // longer than the longest wait that the coordinator grants
constexpr int kTries = 30;
constexpr int kKeyBytes = 16;
constexpr size_t kBarWidth = 10;
constexpr auto kBetween = std::chrono::seconds(1);

struct Connection {
  std::string url = "http://127.0.0.1:8080";
};

void add_connection(CLI::App& app, Connection& connection) {
  if (const char* url = std::getenv("LLM_DIST_COORDINATOR")) connection.url = url;
  app.add_option(
         "--url", connection.url, "The coordinator (or LLM_DIST_COORDINATOR); its key: LLM_DIST_API_KEY")
      ->capture_default_str();
}

// An error status is a Status with the coordinator's own words. unavailable: to be asked again, also where a
// request of the same Idempotency-Key, whose answer was lost, is still being carried out.
Result<http::Response> ask(const Connection& connection,
                           const std::string& method,
                           const std::string& path,
                           const std::string& body = "",
                           http::Headers headers = {}) {
  if (const char* key = std::getenv("LLM_DIST_API_KEY"))
    headers.add("Authorization", std::string("Bearer ") + key);
  auto response = http::request(
      {.method = method, .url = connection.url + path, .headers = std::move(headers), .body = body},
      Deadline::after_seconds(kRequestSeconds));
  RETURN_IF_ERROR(with_advice(
      response.status(),
      {.place = "llm-dist coordinator starts one, and --url or LLM_DIST_COORDINATOR says where one is",
       .trust = "the environment variable SSL_CERT_FILE names the certificates to trust"}));
  if (response->status == 409) {
    const ServerError error = read_server_error(*response);
    if (error.code == "idempotency_key_in_flight") return unavailable(error.message);
  }
  RETURN_IF_ERROR(status_of(*response));
  return response;
}

// A coordinator that is away, or an answer that got lost, is asked again: jobs outlive restarts of it. Only
// for what may be done twice.
Result<http::Response> ask_patiently(const Connection& connection,
                                     const std::string& method,
                                     const std::string& path,
                                     const std::string& body = "",
                                     const http::Headers& headers = {}) {
  for (int i = 1;; ++i) {
    Result<http::Response> answer = ask(connection, method, path, body, headers);
    if (answer.ok() || i == kTries) return answer;
    StatusCode code = answer.status().code();
    if (code != StatusCode::kUnavailable && code != StatusCode::kDeadlineExceeded) return answer;
    if (i == 1)
      std::fprintf(stderr, "%s\nasking again for %d s\n", answer.status().message().c_str(), kTries);
    std::this_thread::sleep_for(kBetween);
  }
}

Result<json> parsed(Result<http::Response> answer) {
  RETURN_IF_ERROR(answer.status());
  json body = json::parse(answer.value().body, nullptr, false);
  if (!body.is_object()) return internal_error("this is no coordinator: its answer is no JSON object");
  return body;
}

Result<json> ask_json(const Connection& connection, const std::string& method, const std::string& path) {
  return parsed(ask(connection, method, path));
}

Result<json> job_of(const Connection& connection, const std::string& id, const std::string& query = "") {
  return parsed(ask_patiently(connection, "GET", "/v1/jobs/" + id + query));
}

int report(const Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "llm-dist: %s\n", status.message().c_str());
  return 1;
}

std::string text_of(const json& job, const char* field) {
  return job.contains(field) && job[field].is_string() ? job[field].get<std::string>() : "";
}

// "3m12s"
std::string age_of(const json& job) {
  auto seconds = static_cast<int64_t>(static_cast<double>(std::time(nullptr)) - job.value("created_at", 0.0));
  seconds = std::max<int64_t>(0, seconds);
  if (seconds < 60) return format("{}s", seconds);
  if (seconds < 3600) return format("{}m{}s", seconds / 60, seconds % 60);
  return format("{}h{}m", seconds / 3600, seconds / 60 % 60);
}

// A measurement's tokens, a batch's items; nothing where there is none to tell of.
std::string progress_of(const Connection& connection, const json& job) {
  std::string id = text_of(job, "id");
  int64_t done = 0;
  int64_t total = 0;
  if (text_of(job, "type") == "bench" && job.value("attempt", 0) > 0) {
    Result<json> attempts = ask_json(connection, "GET", format("/v1/jobs/{}/attempts", id));
    if (!attempts.ok() || attempts.value()["data"].empty()) return "";
    json progress = attempts.value()["data"].back()["progress"];
    if (!progress.is_object()) return "";
    done = progress.value("done", int64_t{0});
    total = progress.value("total", int64_t{0});
  } else if (text_of(job, "type") == "batch_inference") {
    Result<json> batch =
        ask_json(connection, "GET", format("/v1/batches/batch-{}", id.substr(id.find('-') + 1)));
    if (!batch.ok()) return "";
    json counts = batch.value()["request_counts"];
    done = counts.value("completed", int64_t{0}) + counts.value("failed", int64_t{0});
    total = counts.value("total", int64_t{0});
  }
  return total <= 0 ? "" : progress_text(static_cast<size_t>(done), static_cast<size_t>(total), kBarWidth);
}

void print_table(const Connection& connection, const json& jobs) {
  std::printf("%-10s %-16s %-16s %-11s %-24s %7s %8s  %s\n",
              "JOB",
              "TYPE",
              "MODEL",
              "STATE",
              "PROGRESS",
              "ATTEMPT",
              "AGE",
              "REASON");
  for (const json& job : jobs) {
    std::printf("%-10s %-16s %-16.16s %-11s %-24s %7d %8s  %s\n",
                text_of(job, "id").c_str(),
                text_of(job, "type").c_str(),
                text_of(job["spec"], "model").c_str(),
                text_of(job, "state").c_str(),
                progress_of(connection, job).c_str(),
                job.value("attempt", 0),
                age_of(job).c_str(),
                text_of(job, "reason").c_str());
  }
}

bool has_ended(const json& job) {
  Result<cluster::JobState> state = cluster::parse_job_state(text_of(job, "state"));
  return state.ok() && cluster::is_terminal(state.value());
}

// "QUEUED,STARTING,…"
std::string states_of_the_living() {
  std::string names;
  for (int i = 0; i < cluster::kNumJobStates; ++i) {
    auto state = static_cast<cluster::JobState>(i);
    if (cluster::is_terminal(state)) continue;
    if (!names.empty()) names += ',';
    names += cluster::to_string(state);
  }
  return names;
}

struct SubmitFlags {
  Connection connection;
  json body = json::object();
  std::string key;
  bool wait = false;
};

// Words of the command line may be in any encoding.
std::string in_utf8(const json& body) { return body.dump(-1, ' ', false, json::error_handler_t::replace); }

// The key makes it one job, however often it is asked for.
Result<json> submit(const SubmitFlags& flags) {
  std::string key = flags.key.empty() ? http::random_hex(kKeyBytes) : flags.key;
  return parsed(
      ask_patiently(flags.connection, "POST", "/v1/jobs", in_utf8(flags.body), {{"Idempotency-Key", key}}));
}

Status run_submit(const SubmitFlags& flags) {
  ASSIGN_OR_RETURN(json job, submit(flags));
  std::string id = text_of(job, "id");
  std::printf("%s\n", id.c_str());
  if (!flags.wait) return ok_status();
  while (!has_ended(job)) {
    ASSIGN_OR_RETURN(job, job_of(flags.connection, id, "?wait=60"));
  }
  std::string state = text_of(job, "state");
  const std::string message = text_of(job, "message");
  std::fprintf(stderr,
               "%s: %s %s%s%s\n",
               id.c_str(),
               state.c_str(),
               text_of(job, "reason").c_str(),
               message.empty() ? "" : ": ",
               message.c_str());
  return state == "SUCCEEDED" ? ok_status() : failed_precondition(format("{} has not succeeded", id));
}

struct JobsFlags {
  Connection connection;
  std::string id;
  std::string state;
  int limit = 20;
  bool as_json = false;
};

Status run_jobs(const JobsFlags& flags) {
  std::string list = format("/v1/jobs?limit={}", flags.limit);
  if (!flags.state.empty()) list += "&state=" + flags.state;
  ASSIGN_OR_RETURN(json answer,
                   ask_json(flags.connection, "GET", flags.id.empty() ? list : "/v1/jobs/" + flags.id));
  if (flags.as_json || !flags.id.empty()) {
    std::printf("%s\n", answer.dump(2).c_str());
  } else {
    const json data = answer.value("data", json::array());
    if (!data.is_array() || !std::ranges::all_of(data, [](const json& job) { return job.is_object(); }))
      return data_loss("the answer is no list of jobs: is that a coordinator's URL?");
    print_table(flags.connection, data);
  }
  return ok_status();
}

struct LogsFlags {
  Connection connection;
  std::string id;
  int attempt = 0;
  bool follow = false;
};

Status run_logs(const LogsFlags& flags) {
  std::string offset = "0";
  int attempt = flags.attempt;
  while (true) {
    // Before the log: what was written until the job ended is then still read.
    ASSIGN_OR_RETURN(json job, job_of(flags.connection, flags.id));
    int last = job.value("attempt", 0);
    if (attempt == 0) attempt = last;
    std::string which = attempt > 0 ? format("&attempt={}", attempt) : "";
    ASSIGN_OR_RETURN(
        http::Response part,
        ask_patiently(
            flags.connection, "GET", format("/v1/jobs/{}/logs?offset={}{}", flags.id, offset, which)));
    std::fwrite(part.body.data(), 1, part.body.size(), stdout);
    std::fflush(stdout);
    if (const std::string* next = part.headers.find("X-Next-Offset")) offset = *next;
    if (!part.body.empty()) continue;
    // All of this attempt's log is out; the job may have had another one since.
    if (flags.follow && flags.attempt == 0 && attempt < last) {
      attempt = last;
      offset = "0";
      continue;
    }
    if (!flags.follow || has_ended(job)) return ok_status();
    std::this_thread::sleep_for(kBetween);
  }
}

Status run_cancel(const Connection& connection, const std::vector<std::string>& ids) {
  Status first;  // what is wrong with one keeps none of the others
  for (const std::string& id : ids) {
    Result<json> job = ask_json(connection, "POST", format("/v1/jobs/{}/cancel", id));
    if (job.ok()) {
      std::printf("%s %s\n", id.c_str(), text_of(*job, "state").c_str());
    } else if (first.ok()) {
      first = job.status();
    } else {
      std::fprintf(stderr, "llm-dist: %s\n", job.status().message().c_str());
    }
  }
  return first;
}

Status run_top(const Connection& connection, bool once) {
  bool terminal = isatty(STDOUT_FILENO) != 0;
  while (true) {
    ASSIGN_OR_RETURN(json active,
                     ask_json(connection, "GET", "/v1/jobs?limit=50&state=" + states_of_the_living()));
    if (terminal && !once) std::printf("\033[H\033[2J");
    print_table(connection, active["data"]);
    std::fflush(stdout);
    if (once || !terminal) return ok_status();
    std::this_thread::sleep_for(kBetween);
  }
}

// Help that lists once what is an argument and a flag: "type,--type", with the arguments.
class HelpWithoutRepeats : public CLI::Formatter {
  std::string make_group(std::string group,
                         bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    if (!is_positional)
      std::erase_if(options, [](const CLI::Option* option) { return option->get_positional(); });
    return CLI::Formatter::make_group(std::move(group), is_positional, std::move(options));
  }
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    return option->get_name(is_positional, /*all_options=*/true);
  }
  // Of submit, whose arguments are one word each and required.
  std::string make_option_usage(const CLI::Option* option) const override { return option->get_name(true); }
};

CLI::Option* add_text(
    CLI::App& app, const char* flag, const char* field, SubmitFlags* flags, const char* help) {
  return app.add_option_function<std::string>(
      flag, [flags, field](const std::string& value) { flags->body[field] = value; }, help);
}
void add_number(CLI::App& app, const char* flag, const char* field, SubmitFlags* flags, const char* help) {
  app.add_option_function<int64_t>(
      flag, [flags, field](const int64_t& value) { flags->body[field] = value; }, help);
}

}  // namespace

RunCommand add_submit(CLI::App& program) {
  auto flags = std::make_shared<SubmitFlags>();
  SubmitFlags* raw = flags.get();
  CLI::App* app = program.add_subcommand("submit", "Give the coordinator a job");
  app->formatter(std::make_shared<HelpWithoutRepeats>());
  add_connection(*app, flags->connection);
  add_text(*app, "type,--type", "type", raw, "serve or bench")->required();
  add_text(*app, "model,--model", "model", raw, "A name in the coordinator's catalogue")->required();
  add_number(*app, "--tp,--tp-size,--tensor-parallel-size", "tp", raw, "Ranks that share each layer");
  add_number(*app, "--pp,--pp-size,--pipeline-parallel-size", "pp", raw, "Stages of consecutive layers");
  add_number(*app, "--priority", "priority", raw, "Higher starts first");
  add_text(*app, "--project", "project", raw, "Whose job it is");
  add_number(*app, "--expires-after-seconds", "expires_after_seconds", raw, "When it ends in any case");
  add_number(*app, "--max-model-len", "max_model_len", raw, "serve: tokens of a sequence");
  add_number(*app, "--max-num-seqs", "max_num_seqs", raw, "serve: sequences at a time");
  add_text(*app, "--bench", "bench", raw, "bench: latency or throughput");
  add_text(*app, "--batch", "batch", raw, "bench: batch sizes, for example 1,8");
  add_number(*app, "--input-len", "input_len", raw, "bench: prompt tokens");
  add_number(*app, "--output-len", "output_len", raw, "bench: generated tokens");
  app->add_option("--idempotency-key", flags->key, "The same key again is the same job (default: a new one)");
  app->add_flag("--wait", flags->wait, "Until it has ended; 0 only if it succeeded");
  app->footer("Example:\n  llm-dist submit bench smollm2 --bench latency --batch 1,8 --wait");
  return [flags] { return report(run_submit(*flags)); };
}

RunCommand add_jobs(CLI::App& program) {
  auto flags = std::make_shared<JobsFlags>();
  CLI::App* app = program.add_subcommand("jobs", "List the coordinator's jobs, or show one");
  add_connection(*app, flags->connection);
  auto* id = app->add_option("job", flags->id, "job-N; without it: a table of the newest");
  app->add_option("--state", flags->state, "Only those: RUNNING,FAILED")->excludes(id);
  app->add_option("--limit", flags->limit, "How many")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->excludes(id);
  app->add_flag("--json", flags->as_json, "As the API gives them");
  app->footer("Examples:\n  llm-dist jobs --state QUEUED,RUNNING\n  llm-dist jobs job-7");
  return [flags] { return report(run_jobs(*flags)); };
}

RunCommand add_logs(CLI::App& program) {
  auto flags = std::make_shared<LogsFlags>();
  CLI::App* app = program.add_subcommand("logs", "What a job's processes wrote");
  add_connection(*app, flags->connection);
  app->add_option("job", flags->id, "job-N")->required();
  app->add_option("--attempt", flags->attempt, "Which launch (default: the last)")
      ->check(CLI::PositiveNumber);
  app->add_flag("--follow,-f", flags->follow, "Until the job ends");
  app->footer("Example:\n  llm-dist logs job-7 --follow");
  return [flags] { return report(run_logs(*flags)); };
}

RunCommand add_cancel(CLI::App& program) {
  auto connection = std::make_shared<Connection>();
  auto ids = std::make_shared<std::vector<std::string>>();
  CLI::App* app = program.add_subcommand("cancel", "End jobs");
  add_connection(*app, *connection);
  app->add_option("jobs", *ids, "job-N…")->required();
  app->footer("Example:\n  llm-dist cancel job-7 job-8");
  return [connection, ids] { return report(run_cancel(*connection, *ids)); };
}

RunCommand add_top(CLI::App& program) {
  auto connection = std::make_shared<Connection>();
  auto once = std::make_shared<bool>(false);
  CLI::App* app = program.add_subcommand("top", "Watch the jobs that have not ended");
  add_connection(*app, *connection);
  app->add_flag("--once", *once, "Print them once");
  app->footer("Example:\n  llm-dist top");
  return [connection, once] { return report(run_top(*connection, *once)); };
}

}  // namespace llm_dist::launch
