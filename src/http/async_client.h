// An HTTP/1.1 client for many requests at once, all on the thread that calls run(): for load generators, and
// for programs that must stay able to give a request up.
#pragma once

#include <functional>
#include <memory>

#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/http/client.h"
#include "src/http/message.h"

namespace llm_dist::http {

// Not thread-safe, but for wake(): one thread calls everything, and runs every callback, inside run() and
// run_one(). A request takes an idle connection to its server, or opens one.
class AsyncClient {
 public:
  // As Client's results; kCancelled after cancel_all().
  using OnDone = std::function<void(Result<Response>)>;

  explicit AsyncClient(ClientOptions options = {});
  // What is open is cut off; its callbacks are not called any more.
  ~AsyncClient();
  AsyncClient(AsyncClient&&) = delete;

  // A 2xx body goes to on_data piece by piece, any other into the response; on_data may be empty. on_done is
  // called once, always inside run() or run_one().
  void start(ClientRequest request, Deadline deadline, OnData on_data, OnDone on_done);
  void call_at(TimePoint when, std::function<void()> callback);
  // Requests end with kCancelled in the next run() or run_one(); callbacks of call_at() are forgotten.
  void cancel_all();
  // True when nothing is left to do; false at the deadline. Throws what a callback throws.
  bool run(Deadline deadline);
  // For who has more to do than this: returns after whatever happens first, also where nothing is open. A
  // callback may have run, or not.
  void run_one(Deadline deadline);
  // From any thread: the run_one() under way returns, or the next one does at once.
  void wake();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llm_dist::http
