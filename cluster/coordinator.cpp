#include "cluster/coordinator.h"

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "cluster/api/api_reply.h"
#include "cluster/api/batches_api.h"
#include "cluster/api/dashboard.h"
#include "cluster/api/files_api.h"
#include "cluster/api/jobs_api.h"
#include "cluster/api/overview_api.h"
#include "cluster/api/replicas_api.h"
#include "cluster/caretaker.h"
#include "cluster/client_room.h"
#include "cluster/file_contents.h"
#include "cluster/item_client.h"
#include "cluster/local_launcher.h"
#include "cluster/replica_loads.h"
#include "cluster/store/sqlite_store.h"
#include "src/base/format.h"
#include "src/base/log.h"
#include "src/base/open_files.h"
#include "src/http/foreign_page.h"
#include "src/http/key_check.h"
#include "src/http/server.h"

namespace llm_dist::cluster {
namespace {

constexpr int kReaderThreads = 2;
constexpr int kFileThreads = 2;  // uploads and long input files hold up nobody else
constexpr size_t kMaxBodyBytes = 1 << 20;
constexpr size_t kMaxOpenBodyBytes = 16 << 10;  // of what anybody may send, as a registration
constexpr rlim_t kOwnFiles = 256;  // store, logs, probes, event queues, clients that are turned away
constexpr int64_t kDayUs = 24LL * 3600 * 1'000'000;
constexpr auto kBetweenSamples = std::chrono::seconds(2);

// A label's value in Prometheus' text.
std::string label(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

// What projects have of what is limited, and the limits that there are.
std::string project_metrics(const std::vector<ProjectUsage>& projects, const Catalogue& catalogue) {
  std::string text =
      "# HELP llm_dist_project_queued_jobs Jobs of a project that wait.\n"
      "# TYPE llm_dist_project_queued_jobs gauge\n";
  auto add = [&](const char* name, const ProjectUsage& usage, int64_t value) {
    text += format("{}{project=\"{}\"} {}\n", name, label(usage.project), value);
  };
  for (const ProjectUsage& each : projects) add("llm_dist_project_queued_jobs", each, each.num_queued);
  text +=
      "# HELP llm_dist_project_running_jobs Jobs of a project that hold slots.\n"
      "# TYPE llm_dist_project_running_jobs gauge\n";
  for (const ProjectUsage& each : projects) add("llm_dist_project_running_jobs", each, each.num_running);
  text +=
      "# HELP llm_dist_project_slots Slots that they hold.\n"
      "# TYPE llm_dist_project_slots gauge\n";
  for (const ProjectUsage& each : projects) add("llm_dist_project_slots", each, each.num_slots);
  text +=
      "# HELP llm_dist_project_quota What a project may have; *: one without a quota of its own.\n"
      "# TYPE llm_dist_project_quota gauge\n";
  for (const auto& [project, quota] : catalogue.quotas()) {
    const std::pair<const char*, int> limits[] = {{"max_running_jobs", quota.max_running_jobs},
                                                  {"max_queued_jobs", quota.max_queued_jobs},
                                                  {"max_slots", quota.max_slots}};
    for (const auto& [limit, value] : limits) {
      if (value == 0) continue;
      text +=
          format("llm_dist_project_quota{project=\"{}\",limit=\"{}\"} {}\n", label(project), limit, value);
    }
  }
  return text;
}

}  // namespace

class Coordinator::Impl {
 public:
  Impl(CoordinatorOptions options,
       std::unique_ptr<Store> store,
       const Catalogue& catalogue,
       AttemptSecrets secrets)
      : options_(std::move(options)),
        access_(options_.api_keys),
        store_(std::move(store)),
        catalogue_(catalogue),
        secrets_(std::move(secrets)),
        launcher_(make_local_launcher({.program = options_.program,
                                       .store_path = options_.store_path,
                                       .slots = options_.slots,
                                       .orphan_seconds = options_.orphan_seconds,
                                       .open_files = open_files_.before})),
        watch_(make_http_watch()),
        contents_(options_.store_path + ".files"),
        feed_(*store_),
        jobs_api_({.store = *store_,
                   .commit = commit_,
                   .feed = feed_,
                   .workers = workers_,
                   .catalogue = catalogue_,
                   .secrets = secrets_,
                   .access = access_,
                   .attempts_folder = attempts_folder()}),
        replicas_api_({.store = *store_, .commit = commit_, .workers = workers_}),
        files_api_({.store = *store_,
                    .commit = commit_,
                    .workers = file_workers_,
                    .contents = contents_,
                    .max_file_bytes = options_.max_file_bytes}),
        batches_api_({.store = *store_,
                      .commit = commit_,
                      .workers = file_workers_,
                      .contents = contents_,
                      .catalogue = catalogue_}),
        loads_({.store = *store_, .secrets = secrets_}),
        overview_api_({.store = *store_,
                       .workers = workers_,
                       .loads = loads_,
                       .num_slots = options_.slots.num_slots,
                       .version = options_.version}),
        workers_(kReaderThreads),
        file_workers_(kFileThreads),
        commit_(*store_, {.on_changed = [this](const std::vector<JobId>& jobs) { changed(jobs); }}),
        router_(render_http_error) {}
  ~Impl() {
    stop(Deadline::after(std::chrono::seconds(0)));
    workers_.stop();  // what they do may wait for a commit
    file_workers_.stop();
  }

  Status serve();
  void stop(Deadline deadline);
  Status reread_catalogue();
  const http::Server& server() const { return *server_; }
  const http::Router& router() const { return router_; }

 private:
  void add_routes();
  void handle(http::Request request, WriterPtr writer);
  void show_metrics(const WriterPtr& writer);
  void changed(const std::vector<JobId>& jobs);
  void take_care(int items_per_replica);
  void sample_loads();
  Status prepare_files();
  Status write_certificate();
  int items_per_replica() const;
  size_t max_connections(size_t wanted, int items) const;
  http::Admission admit(const http::Request& head) const;
  // Why its sender may not ask this.
  std::optional<ApiError> refusal(const http::Request& head) const;
  std::string attempts_folder() const { return options_.store_path + ".jobs"; }

  const CoordinatorOptions options_;
  const OpenFiles open_files_ = raise_open_files();
  Access access_;
  std::unique_ptr<Store> store_;
  Catalogue catalogue_;
  AttemptSecrets secrets_;
  std::unique_ptr<Launcher> launcher_;
  std::unique_ptr<ReplicaWatch> watch_;
  FileContents contents_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // under mutex_
  Caretaker caretaker_;
  EventFeed feed_;
  JobsApi jobs_api_;
  ReplicasApi replicas_api_;
  FilesApi files_api_;
  BatchesApi batches_api_;
  ReplicaLoads loads_;
  OverviewApi overview_api_;
  Workers workers_;
  Workers file_workers_;
  GroupCommit commit_;  // what is queued when it ends still calls the above
  http::Router router_;
  std::unique_ptr<http::Server> server_;
  std::string certificate_file_;  // for replicas; empty without TLS
  std::thread sampler_;
};

Status Coordinator::Impl::serve() {
  RETURN_IF_ERROR(prepare_files());
  add_routes();
  http::ServerOptions http;
  http.host = options_.host;
  http.port = options_.port;
  http.tls_cert_file = options_.ssl_certfile;
  http.tls_key_file = options_.ssl_keyfile;
  const int items = items_per_replica();
  http.max_connections = max_connections(http.max_connections, items);
  http.max_body_bytes = files_api_.max_body_bytes();
  http.admit = [this](const http::Request& head) { return admit(head); };
  http.render_error = render_http_error;
  ASSIGN_OR_RETURN(server_, http::Server::create(http, [this](http::Request request, WriterPtr writer) {
                     handle(std::move(request), std::move(writer));
                   }));
  RETURN_IF_ERROR(write_certificate());
  take_care(items);
  sampler_ = std::thread([this] { sample_loads(); });
  return ok_status();
}

Status Coordinator::Impl::prepare_files() {
  RETURN_IF_ERROR(contents_.prepare());
  ASSIGN_OR_RETURN(std::vector<std::string> known, store_->batches().contents());
  int removed = contents_.sweep(known);
  if (removed > 0) log_info("{} contents that no file names were removed", removed);
  return ok_status();
}

// The one that is shown: the file that it was read from may be another one's by the time a replica reads it.
// Replicas of an earlier coordinator find this one's at the same place.
Status Coordinator::Impl::write_certificate() {
  if (server_->certificate().empty()) return ok_status();
  certificate_file_ = options_.store_path + ".certificate";
  const std::string part = certificate_file_ + ".part";
  bool whole = static_cast<bool>(std::ofstream(part) << server_->certificate() << std::flush);
  std::error_code error;
  if (whole) std::filesystem::rename(part, certificate_file_, error);
  if (whole && !error) return ok_status();
  return failed_precondition(format("{} cannot be written", certificate_file_));
}

// Whatever clients and batches do, the coordinator finds descriptors for what it does itself.
int Coordinator::Impl::items_per_replica() const {
  size_t fit = items_within(open_files_.now, kOwnFiles, options_.slots.num_slots);
  if (fit >= static_cast<size_t>(options_.batch_concurrency)) return options_.batch_concurrency;
  log_warning(
      "{} requests of a batch at a time on each replica, and not {}: only {} files may be open (ulimit -Hn)",
      fit,
      options_.batch_concurrency,
      open_files_.now);
  return static_cast<int>(fit);
}

size_t Coordinator::Impl::max_connections(size_t wanted, int items) const {
  rlim_t of_batches = static_cast<rlim_t>(options_.slots.num_slots) * (items + kItemClientFiles);
  size_t fit = clients_within(open_files_.now, kOwnFiles + of_batches);
  if (fit >= wanted) return wanted;
  log_warning("{} connections at a time, and not {}: only {} files may be open (ulimit -Hn)",
              fit,
              wanted,
              open_files_.now);
  return fit;
}

// Only whoever may ask may send much, and only an upload may be large. What brings no body is refused by its
// handler: that keeps the connection.
http::Admission Coordinator::Impl::admit(const http::Request& head) const {
  const bool is_upload = FilesApi::is_upload(head);
  const bool brings_body =
      is_upload || head.headers.find("Transfer-Encoding") != nullptr || head.content_length().value_or(0) > 0;
  std::optional<ApiError> error = refusal(head);
  if (error && brings_body) return {.refusal = error_reply(*error)};
  if (is_upload) return files_api_.admit(head);
  return {.max_body_bytes = needed_scope(head) ? kMaxBodyBytes : kMaxOpenBodyBytes};
}

std::optional<ApiError> Coordinator::Impl::refusal(const http::Request& head) const {
  return options_.api_keys.empty() ? http::foreign_page(head, options_.host) : access_.refusal(head);
}

void Coordinator::Impl::stop(Deadline deadline) {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  caretaker_.stop();
  if (sampler_.joinable()) sampler_.join();
  if (server_ == nullptr) return;
  Status closed = server_->shutdown(deadline);
  if (!closed.ok()) log_debug("{}", closed.message());
}

void Coordinator::Impl::add_routes() {
  router_.add(
      "GET", "/livez", [](const http::Request&, const WriterPtr& writer) { writer->send({.body = "{}"}); });
  router_.add(
      "GET", "/readyz", [](const http::Request&, const WriterPtr& writer) { writer->send({.body = "{}"}); });
  router_.add("GET", "/version", [this](const http::Request&, const WriterPtr& writer) {
    writer->send({.body = format(R"({"version":"{}"})", options_.version)});
  });
  auto metrics = [this](const http::Request&, const WriterPtr& writer) { show_metrics(writer); };
  router_.add("GET", "/metrics", on_worker(workers_, metrics));
  jobs_api_.add_routes(router_);
  replicas_api_.add_routes(router_);
  files_api_.add_routes(router_);
  batches_api_.add_routes(router_);
  overview_api_.add_routes(router_);
  add_dashboard_routes(router_);
}

Status Coordinator::Impl::reread_catalogue() {
  ASSIGN_OR_RETURN(Catalogue now, Catalogue::read(options_.catalogue_file, options_.flag_names));
  catalogue_ = now;
  caretaker_.wake();  // what waited for its quota may fit
  return ok_status();
}

void Coordinator::Impl::handle(http::Request request, WriterPtr writer) {
  if (std::optional<ApiError> error = refusal(request)) return void(writer->send(error_reply(*error)));
  router_(std::move(request), std::move(writer));
}

void Coordinator::Impl::show_metrics(const WriterPtr& writer) {
  Result<JobCounts> counts = store_->counts();
  if (!counts.ok()) return void(writer->send(error_reply(counts.status())));
  std::string text = "# HELP llm_dist_jobs Jobs by state.\n# TYPE llm_dist_jobs gauge\n";
  for (int i = 0; i < kNumJobStates; ++i) {
    auto state = static_cast<JobState>(i);
    text += format("llm_dist_jobs{state=\"{}\"} {}\n", state, counts.value().of(state));
  }
  Result<std::vector<ProjectUsage>> projects = store_->projects();
  if (!projects.ok()) return void(writer->send(error_reply(projects.status())));
  text += project_metrics(projects.value(), catalogue_);
  text += format(
      "# HELP llm_dist_coordinator_epoch Counts up with each coordinator of this store.\n"
      "# TYPE llm_dist_coordinator_epoch gauge\nllm_dist_coordinator_epoch {}\n",
      store_->epoch());
  text += format(
      "# HELP llm_dist_store_queue Changes that wait to be written.\n"
      "# TYPE llm_dist_store_queue gauge\nllm_dist_store_queue {}\n",
      commit_.num_queued());
  writer->send({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = text});
}

void Coordinator::Impl::changed(const std::vector<JobId>& jobs) {
  feed_.changed(jobs);
  caretaker_.wake();
}

void Coordinator::Impl::take_care(int items_per_replica) {
  auto commit = [this](CommandBody body) { return commit_.commit(system_time_us(), std::move(body)); };
  auto enqueue = [this](CommandBody body, GroupCommit::Done done) {
    commit_.enqueue(system_time_us(), std::move(body), std::move(done));
  };
  caretaker_.start({.supervisor = {.store = *store_,
                                   .commit = commit,
                                   .launcher = *launcher_,
                                   .watch = *watch_,
                                   .catalogue = catalogue_,
                                   .places = {.store_path = options_.store_path,
                                              .folder = attempts_folder(),
                                              .url = server_->local_url(),
                                              .ca_file = certificate_file_},
                                   .secrets = secrets_,
                                   .options = {.drain_seconds = options_.drain_seconds}},
                    .batches = {.store = *store_,
                                .commit = commit,
                                .enqueue = enqueue,
                                .contents = contents_,
                                .secrets = secrets_,
                                .wake = {},
                                .options = {.concurrency = items_per_replica}},
                    .retention = {.store = *store_,
                                  .commit = commit,
                                  .attempts_folder = attempts_folder(),
                                  .keep_us = options_.keep_days * kDayUs}});
}

void Coordinator::Impl::sample_loads() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kBetweenSamples, [this] { return stopping_; })) {
    lock.unlock();
    Status status = loads_.sample();
    if (!status.ok()) log_error("loads of replicas: {}", status.to_string());
    lock.lock();
  }
}

Coordinator::Coordinator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Coordinator::~Coordinator() = default;
uint16_t Coordinator::port() const { return impl_->server().port(); }
std::string Coordinator::url() const { return impl_->server().url(); }
std::vector<std::pair<std::string, std::string>> Coordinator::routes() const {
  return impl_->router().routes();
}
void Coordinator::stop(Deadline deadline) { impl_->stop(deadline); }
Status Coordinator::reread_catalogue() { return impl_->reread_catalogue(); }

Result<std::unique_ptr<Coordinator>> Coordinator::start(const CoordinatorOptions& options) {
  if (!http::is_loopback(options.host) && options.api_keys.empty()) {
    return invalid_argument(
        format("--host {} lets other machines in, and no API key is set: give --api-key-file FILE or the "
               "environment variable LLM_DIST_API_KEY, or listen on 127.0.0.1",
               options.host));
  }
  ASSIGN_OR_RETURN(Catalogue catalogue, Catalogue::read(options.catalogue_file, options.flag_names));
  ASSIGN_OR_RETURN(std::unique_ptr<Store> store, open_sqlite_store({.path = options.store_path}));
  ASSIGN_OR_RETURN(AttemptSecrets secrets, AttemptSecrets::open(options.store_path + ".secret"));
  auto impl = std::make_unique<Impl>(options, std::move(store), catalogue, std::move(secrets));
  RETURN_IF_ERROR(impl->serve());
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(impl)));
}

}  // namespace llm_dist::cluster
