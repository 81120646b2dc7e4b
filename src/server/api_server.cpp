#include "src/server/api_server.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "src/base/check.h"
#include "src/base/log.h"
#include "src/http/foreign_page.h"
#include "src/http/router.h"
#include "src/http/server.h"
#include "src/server/auth.h"
#include "src/server/pipeline.h"
#include "src/server/step_watch.h"

namespace llm_dist::server {
namespace {

constexpr int kRetrySoonSeconds = 1;
constexpr int kRetryLaterSeconds = 5;
constexpr double kFailSeconds = 1;
constexpr double kAnswersSeconds = 1;
constexpr double kIdleThreadsSeconds = 0.2;
// Of a body that nothing takes.
constexpr uint64_t kMaxUnusedBodyBytes = 16 << 10;

using WriterPtr = std::shared_ptr<http::ResponseWriter>;

http::ServerOptions http_options(const ServerOptions& options) {
  http::ServerOptions http;
  http.host = options.host;
  http.port = options.port;
  http.uds_path = options.uds_path;
  http.tls_cert_file = options.ssl_certfile;
  http.tls_key_file = options.ssl_keyfile;
  http.max_connections = options.max_connections;
  http.max_header_bytes = options.max_header_bytes;
  http.max_body_bytes = options.max_body_bytes;
  return http;
}

ApiError unavailable_error(std::string message, std::string code, int retry_after_s) {
  return {
      .status = 503, .message = std::move(message), .code = std::move(code), .retry_after_s = retry_after_s};
}

}  // namespace

class ApiServer::Impl {
 public:
  explicit Impl(const ServerOptions& server_options)
      : options(server_options),
        keys(server_options.api_keys),
        metrics(server_options.version),
        router([this](const http::Request& request, int status, const std::string& message) {
          return turn_away(*request.headers.find(kRequestIdHeader), status, message);
        }) {
    add_routes();
  }

  void add_routes();
  http::Admission admit(const http::Request& head);
  void handle(http::Request request, WriterPtr writer);
  // The client's, where it can be used.
  std::string request_id(const http::Request& head);
  // Why its sender may not ask at all.
  std::optional<ApiError> stranger(const http::Request& head) const;
  // The answer to a stranger: counted, and in the log.
  http::Response refuse_stranger(const ApiError& error, const std::string& id);
  // The answer to what no endpoint sees: counted, and in the log.
  http::Response turn_away(std::string_view id, int status, const std::string& message);
  void accept(Endpoint endpoint, http::Request request, WriterPtr writer);
  // Why a request cannot be served now.
  std::optional<ApiError> refusal();
  void show_state(http::ResponseWriter& writer, bool alive_is_enough);
  void show_models(http::ResponseWriter& writer);
  void show_model(http::ResponseWriter& writer, const std::string& name);
  void show_metrics(http::ResponseWriter& writer);
  void ask_to_drain(http::ResponseWriter& writer);
  // Calls on_drain, if a drain was asked for and it was not called yet.
  void tell_drain();
  void tell_hung();
  // True for the first caller, which closes; false when somebody else has closed by the deadline.
  Result<bool> enter_shutdown(Deadline deadline);
  void leave_shutdown();
  bool hung() const { return watch && watch->hung(); }
  Pipeline* pipeline() { return attached ? pipe.get() : nullptr; }

  ServerOptions options;
  KeyCheck keys;
  RandomSource random;
  Metrics metrics;
  http::Router router;
  OpenRequests open;
  std::unique_ptr<Pipeline> pipe;    // set once, before `attached`
  std::unique_ptr<StepWatch> watch;  // likewise
  std::atomic<bool> attached{false};
  std::atomic<bool> draining{false};
  std::atomic<bool> drain_asked{false};
  std::atomic<bool> failed{false};
  std::atomic<bool> texts_ended{true};
  enum class Phase : uint8_t { kOpen, kClosing, kClosed };
  std::mutex mutex;
  std::condition_variable closed;
  Phase phase = Phase::kOpen;                  // under mutex
  Status failure;                              // under mutex
  std::function<void()> on_drain;              // under mutex
  std::function<void(const Status&)> on_hung;  // under mutex
  std::unique_ptr<http::Server> http;          // last: its threads use all of the above
};

void ApiServer::Impl::add_routes() {
  using Shared = const WriterPtr&;
  router.add("GET", "/livez", [this](auto, Shared writer) { show_state(*writer, true); });
  router.add("GET", "/readyz", [this](auto, Shared writer) { show_state(*writer, false); });
  router.add("GET", "/health", [this](auto, Shared writer) { show_state(*writer, false); });
  router.add("GET", "/version", [this](auto, Shared writer) {
    writer->send({.body = render_text("version", options.version)});
  });
  router.add("GET", "/metrics", [this](auto, Shared writer) { show_metrics(*writer); });
  router.add("POST", "/admin/drain", [this](auto, Shared writer) { ask_to_drain(*writer); });
  router.add("GET", "/v1/models", [this](auto, Shared writer) { show_models(*writer); });
  router.add("GET", "/v1/models/{id}", [this](const http::Request& request, Shared writer) {
    show_model(*writer, std::string(request.path_param("id")));
  });
  // A name with a slash, as some clients send it.
  router.add("GET", "/v1/models/{owner}/{id}", [this](const http::Request& request, Shared writer) {
    show_model(*writer,
               std::string(request.path_param("owner")) + "/" + std::string(request.path_param("id")));
  });
  for (Endpoint endpoint :
       {Endpoint::kChat, Endpoint::kCompletions, Endpoint::kTokenize, Endpoint::kDetokenize}) {
    router.add(
        "POST", std::string(path_of(endpoint)), [this, endpoint](http::Request request, WriterPtr writer) {
          accept(endpoint, std::move(request), std::move(writer));
        });
  }
}

// Only whoever may ask may send much.
http::Admission ApiServer::Impl::admit(const http::Request& head) {
  if (head.method != "POST" || is_open_path(head.path)) return {.max_body_bytes = kMaxUnusedBodyBytes};
  std::optional<ApiError> error = stranger(head);
  if (!error) return {};
  const std::string id = request_id(head);
  http::Response refusal = refuse_stranger(*error, id);
  refusal.headers.set(std::string(kRequestIdHeader), id);
  return {.refusal = std::move(refusal)};
}

void ApiServer::Impl::handle(http::Request request, WriterPtr writer) {
  std::string id = request_id(request);
  writer->add_header(std::string(kRequestIdHeader), id);
  if (std::optional<ApiError> error = stranger(request)) {
    writer->send(refuse_stranger(*error, id));
    return;
  }
  request.headers.set(std::string(kRequestIdHeader), std::move(id));
  router(std::move(request), std::move(writer));
}

std::string ApiServer::Impl::request_id(const http::Request& head) {
  std::string id = client_request_id(head, keys);
  return id.empty() ? random.name() : id;
}

std::optional<ApiError> ApiServer::Impl::stranger(const http::Request& head) const {
  if (options.api_keys.empty()) {
    return http::foreign_page(head, options.uds_path.empty() ? options.host : "");
  }
  if (is_open_path(head.path) || keys.allows(head)) return std::nullopt;
  return ApiError{.status = 401,
                  .message = "an API key is needed: send 'Authorization: Bearer KEY'",
                  .code = "invalid_api_key"};
}

http::Response ApiServer::Impl::refuse_stranger(const ApiError& error, const std::string& id) {
  log_turned_away(id, error.status);
  metrics.count_refused(error.status);
  return error_response(error);
}

// Of what was refused before its head was read there is no id.
http::Response ApiServer::Impl::turn_away(std::string_view id, int status, const std::string& message) {
  log_turned_away(id, status);
  metrics.count_refused(status);
  return render_http_error(status, message);
}

std::optional<ApiError> ApiServer::Impl::refusal() {
  if (failed) {
    std::lock_guard lock(mutex);
    return unavailable_error(
        "the engine has failed: " + failure.message(), "engine_failed", kRetryLaterSeconds);
  }
  if (!attached) return unavailable_error("the model is loading", "loading", kRetryLaterSeconds);
  if (hung()) return unavailable_error("the engine makes no progress", "hung", kRetryLaterSeconds);
  if (draining) return unavailable_error("the server is draining", "draining", kRetryLaterSeconds);
  return std::nullopt;
}

void ApiServer::Impl::accept(Endpoint endpoint, http::Request request, WriterPtr writer) {
  // Counted before the state is looked at: drain() must not miss it.
  OpenRequests::Ticket ticket = open.enter();
  Job job{.endpoint = endpoint,
          .body = std::move(request.body),
          .writer = std::move(writer),
          .ticket = std::move(ticket),
          .arrival = Clock::now(),
          .request_id = *request.headers.find(kRequestIdHeader)};
  auto error = refusal();
  if (!error && pipe->enqueue(job)) return;
  if (!error) {
    error = unavailable_error(
        format("{} requests wait already", options.max_unparsed_requests), "queue_full", kRetrySoonSeconds);
  }
  record_refusal(job.tag(), *error, metrics);
  job.writer->send(error_response(*error));
}

void ApiServer::Impl::show_state(http::ResponseWriter& writer, bool alive_is_enough) {
  auto error = refusal();
  if (!error && pipe->model().chat_template != nullptr && !text::ChatTemplate::can_render()) {
    error = unavailable_error("no chat template is rendered any more", "unavailable", kRetryLaterSeconds);
  }
  bool dead = failed || (attached && hung());
  if (error && (dead || !alive_is_enough)) {
    writer.send(error_response(*error));
    return;
  }
  writer.send({.body = render_text("status", error ? error->code : "ready")});
}

void ApiServer::Impl::show_models(http::ResponseWriter& writer) {
  Pipeline* serving = pipeline();
  if (serving == nullptr) {
    writer.send(error_response(unavailable_error("the model is loading", "loading", kRetryLaterSeconds)));
    return;
  }
  const ModelInfo& info = serving->model().info;
  writer.send({.body = render_models(info.served_names, serving->created_unix_s(), info.max_model_len)});
}

void ApiServer::Impl::show_model(http::ResponseWriter& writer, const std::string& name) {
  Pipeline* serving = pipeline();
  if (serving == nullptr) return show_models(writer);
  if (auto error = check_model(serving->model(), name)) {
    writer.send(error_response(*error));
    return;
  }
  writer.send({.body = render_model(name, serving->created_unix_s(), serving->model().info.max_model_len)});
}

void ApiServer::Impl::show_metrics(http::ResponseWriter& writer) {
  std::string text;
  if (Pipeline* serving = pipeline()) {
    engine::EngineStats stats = serving->engine().stats();
    text = metrics.render(&stats);
  } else {
    text = metrics.render(nullptr);
  }
  writer.send({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = std::move(text)});
}

void ApiServer::Impl::ask_to_drain(http::ResponseWriter& writer) {
  draining = true;
  bool first = !drain_asked.exchange(true);
  writer.send({.status = 202, .body = render_text("status", "draining")});
  if (!first) return;
  log_info("draining: asked by POST /admin/drain");
  tell_drain();
}

void ApiServer::Impl::tell_drain() {
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex);
    if (drain_asked) callback = std::exchange(on_drain, nullptr);
  }
  if (callback) callback();
}

void ApiServer::Impl::tell_hung() {
  std::function<void(const Status&)> callback;
  {
    std::lock_guard lock(mutex);
    callback = on_hung;
  }
  Status status = deadline_exceeded("work is queued and the engine has ended no step for too long");
  log_error("{}", status.message());
  if (callback) callback(status);
}

// An orderly end and a failure may come at the same time, on two threads: one closes, the other waits for it.
Result<bool> ApiServer::Impl::enter_shutdown(Deadline deadline) {
  std::unique_lock lock(mutex);
  if (phase == Phase::kOpen) {
    phase = Phase::kClosing;
    return true;
  }
  if (closed.wait_until(lock, deadline.when(), [&] { return phase == Phase::kClosed; })) return false;
  return deadline_exceeded("the server is still closing");
}

void ApiServer::Impl::leave_shutdown() {
  std::lock_guard lock(mutex);
  phase = Phase::kClosed;
  closed.notify_all();
}

ApiServer::ApiServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ApiServer::~ApiServer() {
  Status ignored = shutdown(Deadline::after_seconds(0));
  impl_->pipe.reset();  // before what its threads answer by
}

Result<std::unique_ptr<ApiServer>> ApiServer::start(const ServerOptions& options) {
  RETURN_IF_ERROR(check_exposure(options));
  if (options.num_text_threads < 1) return invalid_argument("the server needs at least one text thread");
  auto impl = std::make_unique<Impl>(options);
  http::ServerOptions of_http = http_options(options);
  of_http.admit = [raw = impl.get()](const http::Request& head) { return raw->admit(head); };
  of_http.render_error = [raw = impl.get()](int status, const std::string& message) {
    return raw->turn_away({}, status, message);
  };
  ASSIGN_OR_RETURN(impl->http,
                   http::Server::create(of_http, [raw = impl.get()](http::Request request, WriterPtr writer) {
                     raw->handle(std::move(request), std::move(writer));
                   }));
  return std::unique_ptr<ApiServer>(new ApiServer(std::move(impl)));
}

uint16_t ApiServer::port() const { return impl_->http->port(); }
std::string ApiServer::url() const { return impl_->http->url(); }
std::string ApiServer::resolvable_url() const { return impl_->http->resolvable_url(); }

std::vector<Route> ApiServer::routes() const {
  std::vector<Route> all;
  for (auto& [method, path] : impl_->router.routes()) all.push_back({method, path});
  return all;
}

void ApiServer::attach(EnginePort& engine,
                       const text::Tokenizer& tokenizer,
                       const text::ChatTemplate* chat_template,
                       const ModelInfo& model) {
  CHECK(!impl_->attached, "attach() is called once");
  CHECK(!model.served_names.empty() && model.max_model_len > 1 && model.vocab_size > 0);
  ServedModel served{&tokenizer, chat_template, model};
  impl_->pipe = std::make_unique<Pipeline>(impl_->options, engine, std::move(served), impl_->metrics);
  impl_->watch = std::make_unique<StepWatch>(
      engine, impl_->options.hung_after_seconds, [impl = impl_.get()] { impl->tell_hung(); });
  impl_->attached = true;
}

void ApiServer::set_draining() { impl_->draining = true; }

Status ApiServer::drain(Deadline deadline) {
  set_draining();
  if (impl_->open.wait_until_none(deadline)) return ok_status();
  return deadline_exceeded("some requests are still in progress");
}

bool ApiServer::drain_requested() const { return impl_->drain_asked; }

void ApiServer::set_on_drain(std::function<void()> callback) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->on_drain = std::move(callback);
  }
  impl_->tell_drain();
}

void ApiServer::set_on_hung(std::function<void(const Status&)> callback) {
  std::lock_guard lock(impl_->mutex);
  impl_->on_hung = std::move(callback);
}

void ApiServer::fail(const Status& cause) {
  {
    std::lock_guard lock(impl_->mutex);
    if (impl_->failure.ok()) impl_->failure = cause;
  }
  impl_->failed = true;
  auto error = impl_->refusal();
  if (Pipeline* serving = impl_->pipeline()) {
    serving->fail_all(*error, Deadline::after_seconds(kFailSeconds));
  }
}

Status ApiServer::shutdown(Deadline deadline) {
  set_draining();
  ASSIGN_OR_RETURN(bool first, impl_->enter_shutdown(deadline));
  if (!first) return ok_status();
  Status status;
  if (!impl_->open.wait_until_none(deadline)) {
    status = deadline_exceeded("not every request ended in time");
    // Each is told, and has a moment to read it; who does not read is cut off.
    if (Pipeline* serving = impl_->pipeline())
      serving->fail_all(
          unavailable_error("the server ends before the request has", "draining", kRetryLaterSeconds),
          Deadline::after_seconds(kFailSeconds));
    deadline = Deadline::after_seconds(kFailSeconds);
  }
  Status closed = impl_->http->shutdown(deadline);
  if (status.ok()) status = closed;
  if (impl_->watch) impl_->watch->stop();
  // A moment is enough for threads that have nothing to do.
  const TimePoint moment = Deadline::after_seconds(kIdleThreadsSeconds).when();
  if (impl_->pipe) impl_->texts_ended = impl_->pipe->stop(Deadline::at(std::max(deadline.when(), moment)));
  impl_->leave_shutdown();
  return status;
}

bool ApiServer::ended() const { return impl_->texts_ended; }

Status ApiServer::end(Deadline deadline) {
  Status drained = drain(deadline);
  if (!drained.ok()) log_warning("{}", drained.message());
  return shutdown(Deadline::at(std::max(deadline.when(), Deadline::after_seconds(kAnswersSeconds).when())));
}

}  // namespace llm_dist::server
