#include "src/http/async_client.h"

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "src/base/format.h"
#include "src/http/client_connection.h"

namespace llm_dist::http {
namespace {

// One request, from start() to its on_done.
struct Exchange {
  ClientRequest request;
  Url url{};
  OnData on_data;
  AsyncClient::OnDone on_done;
  std::unique_ptr<ClientConnection> connection{};
  std::optional<asio::steady_timer> limit{};
  Status cut_off{};  // why we gave it up
  std::optional<Result<Response>> outcome{};
};
using ExchangePtr = std::shared_ptr<Exchange>;
using TimerPtr = std::shared_ptr<asio::steady_timer>;

}  // namespace

class AsyncClient::Impl {
 public:
  explicit Impl(ClientOptions options) : setup_(std::move(options)) {}
  ~Impl();

  void start(ExchangePtr exchange, Deadline deadline);
  void call_at(TimePoint when, std::function<void()> callback);
  void cancel_all();
  bool run(Deadline deadline);
  void run_one(Deadline deadline);
  void wake();

 private:
  Status prepare(Exchange& exchange);
  void limit_time(const ExchangePtr& exchange, Deadline deadline);
  std::unique_ptr<ClientConnection> take_connection(const Url& url);
  static asio::awaitable<void> perform(ExchangePtr exchange);
  void finish(const ExchangePtr& exchange);
  bool pending() const { return !open_.empty() || !timers_.empty(); }

  ClientSetup setup_;
  asio::io_context context_{1};
  std::vector<std::unique_ptr<ClientConnection>> idle_;
  std::set<ExchangePtr> open_;
  std::set<TimerPtr> timers_;
  bool closing_ = false;
  std::atomic<bool> waking_ = false;  // something is posted that ends a wait
};

// The coroutines refer to their connections, so they end first.
AsyncClient::Impl::~Impl() {
  closing_ = true;
  cancel_all();
  context_.restart();
  while (pending() && context_.run_one() != 0) {
  }
}

Status AsyncClient::Impl::prepare(Exchange& exchange) {
  ASSIGN_OR_RETURN(exchange.url, check_request(exchange.request));
  if (exchange.url.tls) RETURN_IF_ERROR(setup_.ensure_tls());
  return setup_.ensure_event_queue(context_);
}

void AsyncClient::Impl::start(ExchangePtr exchange, Deadline deadline) {
  open_.insert(exchange);
  Status prepared = prepare(*exchange);
  if (!prepared.ok()) {
    exchange->outcome = prepared;
    asio::post(context_, [this, exchange] { finish(exchange); });
    return;
  }
  exchange->connection = take_connection(exchange->url);
  limit_time(exchange, deadline);
  asio::co_spawn(context_, perform(exchange), [this, exchange](std::exception_ptr error) {
    if (!error) return finish(exchange);
    exchange->limit->cancel();
    open_.erase(exchange);
    if (!closing_) std::rethrow_exception(error);
  });
}

void AsyncClient::Impl::limit_time(const ExchangePtr& exchange, Deadline deadline) {
  exchange->limit.emplace(context_, deadline.when());
  exchange->limit->async_wait([exchange](ErrorCode error) {
    if (error || !exchange->connection) return;
    exchange->cut_off =
        deadline_exceeded(format("no complete response from {} in time", exchange->url.authority));
    exchange->connection->cancel();
  });
}

// The one used last: its congestion window is the widest.
std::unique_ptr<ClientConnection> AsyncClient::Impl::take_connection(const Url& url) {
  for (size_t i = idle_.size(); i-- > 0;) {
    if (idle_[i]->connected_to() != url.origin()) continue;
    std::unique_ptr<ClientConnection> connection = std::move(idle_[i]);
    idle_.erase(idle_.begin() + static_cast<ptrdiff_t>(i));
    return connection;
  }
  return std::make_unique<ClientConnection>(context_, setup_);
}

asio::awaitable<void> AsyncClient::Impl::perform(ExchangePtr exchange) {
  // Given up before it began: the connection knows nothing of it yet.
  if (!exchange->cut_off.ok()) co_return;
  const OnData* on_data = exchange->on_data ? &exchange->on_data : nullptr;
  exchange->outcome = co_await exchange->connection->exchange(exchange->request, exchange->url, on_data);
}

void AsyncClient::Impl::finish(const ExchangePtr& exchange) {
  if (exchange->limit) exchange->limit->cancel();
  open_.erase(exchange);
  if (!exchange->cut_off.ok()) {
    exchange->outcome = exchange->cut_off;
  } else if (exchange->connection && !exchange->connection->connected_to().empty()) {
    idle_.push_back(std::move(exchange->connection));
  }
  exchange->connection.reset();
  if (!closing_) exchange->on_done(std::move(*exchange->outcome));
}

void AsyncClient::Impl::call_at(TimePoint when, std::function<void()> callback) {
  auto timer = std::make_shared<asio::steady_timer>(context_, when);
  timers_.insert(timer);
  timer->async_wait([this, timer, callback = std::move(callback)](ErrorCode) {
    if (timers_.erase(timer) != 0) callback();
  });
}

void AsyncClient::Impl::cancel_all() {
  for (const TimerPtr& timer : std::exchange(timers_, {})) timer->cancel();
  for (const ExchangePtr& exchange : open_) {
    if (!exchange->cut_off.ok()) continue;
    exchange->cut_off = cancelled("the request was given up");
    if (exchange->connection) exchange->connection->cancel();
  }
}

bool AsyncClient::Impl::run(Deadline deadline) {
  context_.restart();
  while (pending() && context_.run_one_until(deadline.when()) != 0) {
  }
  return !pending();
}

void AsyncClient::Impl::run_one(Deadline deadline) {
  const asio::executor_work_guard<asio::io_context::executor_type> waits_for_more(context_.get_executor());
  context_.restart();
  context_.run_one_until(deadline.when());
}

void AsyncClient::Impl::wake() {
  if (!waking_.exchange(true)) asio::post(context_, [this] { waking_ = false; });
}

AsyncClient::AsyncClient(ClientOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
AsyncClient::~AsyncClient() = default;

void AsyncClient::start(ClientRequest request, Deadline deadline, OnData on_data, OnDone on_done) {
  impl_->start(
      std::make_shared<Exchange>(Exchange{
          .request = std::move(request), .on_data = std::move(on_data), .on_done = std::move(on_done)}),
      deadline);
}

void AsyncClient::call_at(TimePoint when, std::function<void()> callback) {
  impl_->call_at(when, std::move(callback));
}

void AsyncClient::cancel_all() { impl_->cancel_all(); }
bool AsyncClient::run(Deadline deadline) { return impl_->run(deadline); }
void AsyncClient::run_one(Deadline deadline) { impl_->run_one(deadline); }
void AsyncClient::wake() { impl_->wake(); }

}  // namespace llm_dist::http
