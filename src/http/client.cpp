#include "src/http/client.h"

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <optional>

#include "src/base/format.h"
#include "src/http/client_connection.h"

namespace llm_dist::http {

class Client::Impl {
 public:
  explicit Impl(ClientOptions options) : setup_(std::move(options)) {}

  Result<Response> exchange(const ClientRequest& request, Deadline deadline, const OnData* on_data);
  void abort();

 private:
  ClientSetup setup_;
  asio::io_context context_{1};
  ClientConnection connection_{context_, setup_};
  std::atomic<bool> aborted_ = false;
};

// Runs the coroutine on this thread until it is done or the deadline has passed.
Result<Response> Client::Impl::exchange(const ClientRequest& request,
                                        Deadline deadline,
                                        const OnData* on_data) {
  ASSIGN_OR_RETURN(Url url, check_request(request));
  if (url.tls) RETURN_IF_ERROR(setup_.ensure_tls());
  RETURN_IF_ERROR(setup_.ensure_event_queue(context_));
  std::optional<Result<Response>> outcome;
  bool done = false;
  std::exception_ptr failure;
  auto perform = [&]() -> asio::awaitable<void> {
    // From here on abort() finds something to cancel.
    if (!aborted_) outcome = co_await connection_.exchange(request, url, on_data);
  };
  asio::co_spawn(context_, perform(), [&](std::exception_ptr error) {
    failure = error;
    done = true;
  });
  context_.restart();
  while (!done && context_.run_one_until(deadline.when()) != 0) {
  }
  const bool late = !done;
  if (late) connection_.cancel();
  // The coroutine refers to this frame, so it has to end before we return.
  while (!done && context_.run_one() != 0) {
  }
  if (failure || late) connection_.disconnect();
  // What a callback of the caller threw.
  if (failure) std::rethrow_exception(failure);
  if (aborted_ && (!outcome || !outcome->ok())) return cancelled("the request was aborted");
  if (late) return deadline_exceeded(format("no complete response from {} in time", url.authority));
  return std::move(*outcome);
}

void Client::Impl::abort() {
  aborted_ = true;
  asio::post(context_, [this] { connection_.cancel(); });
}

Client::Client(ClientOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

Result<Response> Client::request(const ClientRequest& request, Deadline deadline) {
  return impl_->exchange(request, deadline, nullptr);
}

Result<Response> Client::stream(const ClientRequest& request, Deadline deadline, const OnData& on_data) {
  return impl_->exchange(request, deadline, &on_data);
}

void Client::abort() { impl_->abort(); }

Result<Response> Client::stream_events(const ClientRequest& request,
                                       Deadline deadline,
                                       const SseParser::OnEvent& on_event) {
  SseParser parser(on_event);
  return stream(request, deadline, [&](std::string_view piece) { return parser.feed(piece); });
}

Result<Response> request(const ClientRequest& request, Deadline deadline, ClientOptions options) {
  return Client(std::move(options)).request(request, deadline);
}

}  // namespace llm_dist::http
