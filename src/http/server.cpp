#include "src/http/server.h"

#include <fcntl.h>
#include <netdb.h>
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
constexpr Duration kWarnAfter = std::chrono::minutes(1);

// An I/O thread with an event loop of its own: a connection stays on one of them, so it needs no lock.
struct IoThread {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::thread thread;
};

// A descriptor that nobody uses. Where no other is left it is given up for as long as it takes to accept a
// client and send it away: who is not accepted waits in the backlog for ever.
class SpareDescriptor {
 public:
  SpareDescriptor() { take(); }
  ~SpareDescriptor() { give_up(); }
  SpareDescriptor(const SpareDescriptor&) = delete;
  SpareDescriptor& operator=(const SpareDescriptor&) = delete;

  void take() { file_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
  void give_up() {
    if (file_ >= 0) (void)::close(file_);
    file_ = -1;
  }

 private:
  int file_ = -1;
};

bool is_lack_of_descriptors(const ErrorCode& error) {
  namespace errc = boost::system::errc;
  return error == errc::too_many_files_open || error == errc::too_many_files_open_in_system;
}

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

bool is_everywhere(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

bool resolves(const std::string& name) {
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, nullptr, &found) != 0) return false;
  ::freeaddrinfo(found);
  return true;
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
  uint16_t port() const { return address_.port(); }
  std::string url() const;
  std::string local_url() const;
  std::string resolvable_url() const;
  std::string certificate() const;

 private:
  const ServerOptions& options() const { return core_->options; }
  asio::awaitable<void> accept_loop();
  void admit(StreamSocket socket);
  // False: nobody is there any more, or others took the descriptor.
  bool send_one_away();
  void warn_of(const ErrorCode& error);
  void abort_connections();
  std::string url_at(const std::string& host) const;

  std::shared_ptr<ServerCore> core_;
  std::unique_ptr<asio::ssl::context> tls_;
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::optional<Acceptor> acceptor_;
  asio::ip::tcp::endpoint address_;  // port 0 on a Unix socket
  SpareDescriptor spare_;
  TimePoint warn_at_ = TimePoint::min();
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
  acceptor_->non_blocking(true);  // for send_one_away()
  address_ = bound_endpoint(*acceptor_).value_or(asio::ip::tcp::endpoint());
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
    warn_of(error);
    if (is_lack_of_descriptors(error) && send_one_away()) continue;
    pause.expires_after(std::chrono::milliseconds(100));
    co_await pause.async_wait(kResult);
  }
}

bool Server::Impl::send_one_away() {
  spare_.give_up();
  ErrorCode error;
  {
    const StreamSocket unanswered = acceptor_->accept(error);
  }
  spare_.take();
  return !error;
}

void Server::Impl::warn_of(const ErrorCode& error) {
  if (Clock::now() < warn_at_) return;
  warn_at_ = Clock::now() + kWarnAfter;
  log_warning("http accept failed: {}; said once a minute", error.message());
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
  return url_at(is_everywhere(options().host) ? asio::ip::host_name()
                                              : options().host);  // where others find it
}

std::string Server::Impl::local_url() const {
  if (!options().uds_path.empty()) return url();
  asio::ip::address address = address_.address();
  if (!address.is_unspecified()) return url_at(address.to_string());
  return url_at(address.is_v6() ? "::1" : "127.0.0.1");
}

std::string Server::Impl::resolvable_url() const {
  const bool doubtful = options().uds_path.empty() && is_everywhere(options().host);
  return doubtful && !resolves(asio::ip::host_name()) ? local_url() : url();
}

std::string Server::Impl::url_at(const std::string& host) const {
  bool v6 = host.find(':') != std::string::npos;
  return format(v6 ? "{}://[{}]:{}" : "{}://{}:{}", tls_ ? "https" : "http", host, port());
}

std::string Server::Impl::certificate() const {
  if (!tls_) return "";
  std::unique_ptr<BIO, int (*)(BIO*)> pem(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_X509(pem.get(), SSL_CTX_get0_certificate(tls_->native_handle()));
  char* text = nullptr;
  auto bytes = static_cast<size_t>(BIO_get_mem_data(pem.get(), &text));
  return {text, bytes};
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
std::string Server::local_url() const { return impl_->local_url(); }
std::string Server::resolvable_url() const { return impl_->resolvable_url(); }
std::string Server::certificate() const { return impl_->certificate(); }
void Server::stop_accepting() { impl_->stop_accepting(); }
Status Server::shutdown(Deadline deadline) { return impl_->shutdown(deadline); }

}  // namespace llm_dist::http
