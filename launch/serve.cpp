// `llm-dist serve`: the OpenAI-compatible server on rank 0, steps on every rank.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "launch/commands.h"
#include "launch/endpoint_file.h"
#include "launch/rank_process.h"
#include "launch/registration.h"
#include "launch/shutdown_signal.h"
#include "launch/text_model.h"
#include "src/base/log.h"
#include "src/base/open_files.h"
#include "src/engine/engine.h"
#include "src/server/api_server.h"

namespace llm_dist::launch {
namespace {

// Model, logs, devices, bodies on disk, clients that are turned away; and what a rank costs: connections of
// the world, of the liveness watch and of libraries.
constexpr rlim_t kOwnFiles = 384;
constexpr rlim_t kFilesPerRank = 8;

struct ServeFlags {
  EngineFlags engine;
  server::ServerOptions server;
  std::vector<std::string> served_names;
  std::string endpoint_file;
  std::string api_key_file;
  std::string api_key;
  double shutdown_timeout_seconds = 30;
};

Status collect_keys(ServeFlags& flags) {
  ASSIGN_OR_RETURN(flags.server.api_keys, server::accepted_keys(flags.api_key_file));
  if (!flags.api_key.empty()) {
    log_warning("--api-key shows in the process list: use --api-key-file or LLM_DIST_API_KEY");
    flags.server.api_keys.push_back(flags.api_key);
  }
  return ok_status();
}

server::ModelInfo model_info(const ServeFlags& flags, RankProcess& process, const TextModel& text) {
  const checkpoint::GenerationDefaults& defaults = process.checkpoint().config().generation;
  server::ModelInfo info{.served_names = flags.served_names,
                         .max_model_len = process.engine().options().max_model_len,
                         .vocab_size = process.checkpoint().config().vocab_size,
                         .max_num_seqs = process.engine().options().max_num_seqs,
                         .eos_ids = text.eos_ids};
  if (info.served_names.empty()) info.served_names.push_back(flags.engine.model.model);
  info.defaults = {.temperature = defaults.temperature,
                   .top_p = defaults.top_p,
                   .min_p = defaults.min_p,
                   .top_k = defaults.top_k,
                   .repetition_penalty = defaults.repetition_penalty,
                   .max_tokens = defaults.max_new_tokens};
  // A model that says do_sample: false means greedy.
  if (defaults.do_sample == false) info.defaults.temperature = 0.0;
  return info;
}

Status serve_requests(const ServeFlags& flags,
                      RankProcess& process,
                      server::ApiServer& api,
                      EndpointFile& endpoint,
                      ShutdownSignal& signal) {
  const TextModel text = process.take_text();
  auto engine = engine::Engine::start(process.engine(),
                                      process.channel(),
                                      {.max_queued_requests = flags.engine.scheduler.max_num_queued_reqs,
                                       .max_queued_tokens = flags.engine.scheduler.max_num_queued_tokens},
                                      process.hooks(),
                                      [&](const Status& cause) { process.give_up(cause); });
  auto port = server::make_engine_port(*engine);
  api.attach(*port,
             *text.tokenizer,
             text.chat_template ? &*text.chat_template : nullptr,
             model_info(flags, process, text));
  log_info("ready at {}", api.url());
  auto registration = register_with_coordinator([&] { return api.resolvable_url(); });

  std::string why = signal.wait();
  log_info(
      "{}: draining for at most {} s; a second signal ends it at once", why, flags.shutdown_timeout_seconds);
  Status ended = api.end(Deadline::after_seconds(flags.shutdown_timeout_seconds));
  if (!ended.ok()) log_warning("{}", ended.message());
  engine->stop();
  if (!api.ended()) {
    endpoint.remove();
    process.set_on_failure({});
    end_at_once(process, ok_status(), &signal);
  }
  return ok_status();
}

// Whatever clients do, this process finds descriptors for what it does itself.
size_t max_connections(size_t wanted, int num_ranks) {
  const rlim_t open_files = raise_open_files().now;
  const size_t fit = files_left(open_files, kOwnFiles + kFilesPerRank * static_cast<rlim_t>(num_ranks));
  if (fit >= wanted) return wanted;
  log_warning("{} connections at a time, and not {}: only {} files may be open (ulimit -Hn)",
              fit,
              wanted,
              open_files);
  return fit;
}

// What rank 0 alone can know to be wrong: keys, certificates, the port.
Result<std::unique_ptr<server::ApiServer>> listen(ServeFlags& flags, EndpointFile& endpoint, int num_ranks) {
  RETURN_IF_ERROR(collect_keys(flags));
  flags.server.max_connections = max_connections(flags.server.max_connections, num_ranks);
  ASSIGN_OR_RETURN(std::unique_ptr<server::ApiServer> api, server::ApiServer::start(flags.server));
  RETURN_IF_ERROR(endpoint.write(api->url(), flags.server.uds_path));
  return api;
}

Status load_and_serve(const ServeFlags& flags,
                      RankProcess& process,
                      server::ApiServer& api,
                      EndpointFile& endpoint,
                      ShutdownSignal& signal) {
  log_info("listening at {}; loading {}", api.url(), flags.engine.model.model);
  api.set_on_drain([&] { signal.raise("POST /admin/drain"); });
  api.set_on_hung([&](const Status& cause) { process.give_up_from(cause); });
  process.set_on_failure([&](const Status& cause) {
    endpoint.remove();
    api.fail(cause);
    Status closed = api.shutdown(Deadline::after_seconds(0.5));
    if (!closed.ok()) log_debug("{}", closed.message());
  });
  RETURN_IF_ERROR(process.load_with_text(flags.engine));
  return serve_requests(flags, process, api, endpoint, signal);
}

Status lead(ServeFlags& flags, RankProcess& process, ShutdownSignal& signal) {
  EndpointFile endpoint(flags.endpoint_file, signal);
  process.set_on_failure([&](const Status&) { endpoint.remove(); });
  auto listening = listen(flags, endpoint, process.size());
  Status status = process.agree(listening.status());
  if (status.ok()) status = load_and_serve(flags, process, **listening, endpoint, signal);
  process.set_on_failure({});
  return status;
}

int run(ServeFlags flags) {
  ShutdownSignal signal;  // before any thread is started, so that every thread inherits its mask
  auto joined = RankProcess::join(flags.engine);
  if (!joined.ok()) return report(nullptr, joined.status());
  RankProcess& process = **joined;
  Status status;
  if (process.leads()) {
    signal.set_farewell([&](const std::string& why, int number) { process.announce_end(why, number); });
    status = lead(flags, process, signal);
  } else {
    signal.ignore();  // rank 0 drains and then tells the others to end; its death ends them too
    status = process.agree(ok_status());
    if (status.ok()) status = process.load_with_text(flags.engine);
    if (status.ok()) status = process.follow();
  }
  return end(process, status, &signal);
}

}  // namespace

RunCommand add_serve(CLI::App& program) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* app = program.add_subcommand("serve", "Serve a model over an OpenAI-compatible HTTP API");
  add_engine_flags(*app, flags->engine);
  auto* group = app->add_option_group("Server");
  auto* host = group->add_option("--host", flags->server.host, "Address to listen at")->capture_default_str();
  auto* port = group->add_option("--port", flags->server.port, "0: any free one")->capture_default_str();
  group->add_option("--uds", flags->server.uds_path, "A Unix socket instead of host and port")
      ->excludes(host)
      ->excludes(port);
  group->add_option(
      "--endpoint-file", flags->endpoint_file, "This file holds the URL while the server listens");
  group
      ->add_option("--served-model-name",
                   flags->served_names,
                   "Names that requests may use, NAME[,NAME]; also given several times (default: MODEL)")
      ->delimiter(',');
  group->add_option("--api-key-file", flags->api_key_file, "Accepted keys, one a line (or LLM_DIST_API_KEY)");
  group->add_option(
      "--api-key", flags->api_key, "A key; others on this machine can read it from the process list");
  group->add_option("--ssl-certfile", flags->server.ssl_certfile, "PEM certificate chain");
  group->add_option("--ssl-keyfile", flags->server.ssl_keyfile, "PEM private key");
  group
      ->add_option("--request-timeout",
                   flags->server.request_timeout_seconds,
                   "Seconds from arrival to the last byte (0: none)")
      ->check(CLI::NonNegativeNumber);
  group
      ->add_option("--shutdown-timeout",
                   flags->shutdown_timeout_seconds,
                   "Seconds that running requests, and answers to slow readers, get when the server ends")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->footer(
      "Examples:\n"
      "  llm-dist serve model.gguf\n"
      "  mpirun -np 8 llm-dist serve path/to/Llama-3.3-70B --tp 8 --port 8000\n"
      "  mpirun -np 4 llm-dist serve path/to/model --tp 2 --pp 2 --served-model-name chat");
  return [flags] { return in_ranks(flags->engine.launch, [&] { return run(*flags); }); };
}

}  // namespace llm_dist::launch
