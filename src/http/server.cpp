#include "src/http/server.h"

#include <pthread.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/host_name.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "src/base/log.h"
#include "src/http/connection.h"
#include "src/http/listener.h"

namespace llm_dist::http {
namespace {

constexpr auto kResult = asio::as_tuple(asio::use_awaitable);
// Connections beyond max_connections that may wait for their 503; more are closed unanswered.
constexpr size_t kMaxOverloadedConnections = 64;
// Cut-off connections end as soon as their thread runs; a handler that blocks it is a bug.
constexpr Duration kAbortTime = std::chrono::seconds(30);

// An I/O thread with an event loop of its own: a connection stays on one of them, so it needs no lock.
struct IoThread {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::thread thread;
};

Result<std::unique_ptr<asio::ssl::context>> load_tls(const ServerOptions& options) {
  auto context = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  using Context = asio::ssl::context;
  context->set_options(Context::default_workarounds | Context::no_tlsv1 | Context::no_tlsv1_1);
  ErrorCode error;
  context->use_certificate_chain_file(options.tls_cert_file, error);
  if (error)
    return invalid_argument(
        format("cannot use the TLS certificate {}: {}", options.tls_cert_file, error.message()));
  context->use_private_key_file(options.tls_key_file, Context::pem, error);
  if (error)
    return invalid_argument(format("cannot use the TLS key {}: {}", options.tls_key_file, error.message()));
  if (SSL_CTX_check_private_key(context->native_handle()) != 1)
    return invalid_argument(
        format("the TLS key {} does not belong to {}", options.tls_key_file, options.tls_cert_file));
  return context;
}

std::string percent_encode_slashes(const std::string& path) {
  std::string encoded;
  for (char c : path) encoded += c == '/' ? std::string("%2F") : std::string(1, c);
  return encoded;
}

}  // namespace

class Server::Impl {
 public:
  Impl(ServerOptions options, Handler handler) : core_(std::make_shared<ServerCore>()) {
    core_->options = std::move(options);
    core_->handler = std::move(handler);
  }
  ~Impl() { (void)shutdown(Deadline::after(Duration::zero())); }

  Status start();
  void stop_accepting();
  Status shutdown(Deadline deadline);
  uint16_t port() const { return port_; }
  std::string url() const;

 private:
  const ServerOptions& options() const { return core_->options; }
  asio::awaitable<void> accept_loop();
  void admit(StreamSocket socket);
  void abort_connections();

  std::shared_ptr<ServerCore> core_;
  std::unique_ptr<asio::ssl::context> tls_;
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::optional<Acceptor> acceptor_;
  uint16_t port_ = 0;
  bool accepting_ = false;
  bool running_ = false;
};

Status Server::Impl::start() {
  if (options().tls_cert_file.empty() != options().tls_key_file.empty())
    return invalid_argument("TLS needs both --ssl-certfile and --ssl-keyfile");
  if (options().num_io_threads < 1) return invalid_argument("the server needs at least one I/O thread");
  if (!options().tls_cert_file.empty()) {
    ASSIGN_OR_RETURN(tls_, load_tls(options()));
  }
  for (int i = 0; i < options().num_io_threads; ++i) threads_.push_back(std::make_unique<IoThread>());
  ASSIGN_OR_RETURN(acceptor_, listen(threads_[0]->context, options()));
  port_ = bound_port(*acceptor_);
  accepting_ = running_ = true;
  asio::co_spawn(threads_[0]->context, accept_loop(), asio::detached);
  for (auto& io : threads_) {
    io->thread = std::thread([&context = io->context] { context.run(); });
    pthread_setname_np(io->thread.native_handle(), "http");
  }
  return ok_status();
}

asio::awaitable<void> Server::Impl::accept_loop() {
  asio::steady_timer pause(threads_[0]->context);
  for (size_t next = 0; acceptor_->is_open(); next = (next + 1) % threads_.size()) {
    auto [error, socket] = co_await acceptor_->async_accept(threads_[next]->context, kResult);
    if (!acceptor_->is_open()) co_return;
    if (!error) {
      admit(std::move(socket));
      continue;
    }
    // Most likely out of file descriptors: some will be free again.
    log_warning("http accept failed: {}", error.message());
    pause.expires_after(std::chrono::milliseconds(100));
    co_await pause.async_wait(kResult);
  }
}

void Server::Impl::admit(StreamSocket socket) {
  size_t open = core_->num_connections();
  if (open >= options().max_connections + kMaxOverloadedConnections) return;
  bool overloaded = open >= options().max_connections;
  tune_socket(socket);
  std::string peer = peer_name(socket);
  asio::any_io_executor executor = socket.get_executor();
  auto transport =
      tls_ ? make_tls_server_transport(std::move(socket), *tls_) : make_plain_transport(std::move(socket));
  std::make_shared<Connection>(std::move(transport), executor, std::move(peer), core_)->start(overloaded);
}

void Server::Impl::stop_accepting() {
  if (!std::exchange(accepting_, false)) return;
  std::promise<void> closed;
  asio::post(threads_[0]->context, [&] {
    ErrorCode ignored;
    acceptor_->close(ignored);
    closed.set_value();
  });
  closed.get_future().wait();
  if (!options().uds_path.empty()) (void)::unlink(options().uds_path.c_str());
}

Status Server::Impl::shutdown(Deadline deadline) {
  if (!std::exchange(running_, false)) return ok_status();
  core_->draining = true;
  stop_accepting();
  for (auto& connection : core_->connections()) connection->drain();
  size_t cut_off = 0;
  if (!core_->wait_until_empty(deadline)) {
    cut_off = core_->num_connections();
    abort_connections();
  }
  for (auto& io : threads_) {
    io->work.reset();
    io->thread.join();
  }
  core_->stop_disk_threads();
  if (cut_off == 0) return ok_status();
  return deadline_exceeded(format("{} connections were cut off", cut_off));
}

void Server::Impl::abort_connections() {
  for (auto& connection : core_->connections()) connection->abort();
  bool empty = core_->wait_until_empty(Deadline::after(kAbortTime));
  CHECK(empty, "an http handler blocks an I/O thread");
}

std::string Server::Impl::url() const {
  const std::string scheme = tls_ ? "https" : "http";
  if (!options().uds_path.empty()) return scheme + "+unix://" + percent_encode_slashes(options().uds_path);
  std::string host = options().host;
  if (host == "0.0.0.0" || host == "::") host = asio::ip::host_name();  // where others find it
  bool v6 = host.find(':') != std::string::npos;
  return format(v6 ? "{}://[{}]:{}" : "{}://{}:{}", scheme, host, port_);
}

Result<std::unique_ptr<Server>> Server::create(ServerOptions options, Handler handler) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(handler));
  RETURN_IF_ERROR(impl->start());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;
uint16_t Server::port() const { return impl_->port(); }
std::string Server::url() const { return impl_->url(); }
void Server::stop_accepting() { impl_->stop_accepting(); }
Status Server::shutdown(Deadline deadline) { return impl_->shutdown(deadline); }

}  // namespace llm_dist::http
