// ApiServer: the OpenAI-compatible API of rank 0. It listens before the model is loaded, so that probes and
// clients see a state instead of a refused connection; attach() makes it serve.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/server/engine_port.h"
#include "src/server/server_options.h"
#include "src/text/chat_template.h"
#include "src/text/tokenizer.h"

namespace llm_dist::server {

struct Route {
  std::string method;
  std::string path;  // "/v1/models/{id}"
};

class ApiServer {
 public:
  // Listens when it returns, in the state "loading". invalid_argument: unusable options, a bind beyond this
  // machine without a key among them; failed_precondition: the address is taken.
  static Result<std::unique_ptr<ApiServer>> start(const ServerOptions& options);
  // shutdown() without waiting for anything but texts that are being tokenized.
  ~ApiServer();

  uint16_t port() const;               // 0 on a Unix socket
  std::string url() const;             // "http://127.0.0.1:8000"
  std::string resolvable_url() const;  // as http::Server's

  // All that it serves.
  std::vector<Route> routes() const;

  // The model is ready: requests are served from here on. Once. All three outlive this object, or its
  // shutdown() where ended(). `chat_template`: null when the model has none (chat requests are then refused).
  void attach(EnginePort& engine,
              const text::Tokenizer& tokenizer,
              const text::ChatTemplate* chat_template,
              const ModelInfo& model);

  // New requests get 503; those in progress go on.
  void set_draining();
  // set_draining(), then waits until no request is in progress. deadline_exceeded: some still are.
  Status drain(Deadline deadline);
  // Whether somebody asked for it with POST /admin/drain.
  bool drain_requested() const;
  // Called once, on an I/O thread, when somebody does: it must not block. At once, on this thread, when
  // somebody has.
  void set_on_drain(std::function<void()> callback);

  // The world is lost: open streams get an error event, waiting requests and new ones 503. Returns when the
  // errors are queued (at most a second); shutdown() then lets them reach the clients. Any thread.
  void fail(const Status& cause);
  // Called once, on a thread of this object, when no step has ended for too long although work is queued
  // (/livez is 503 from then on, while it lasts). It may call fail() and shutdown().
  void set_on_hung(std::function<void(const Status&)> callback);

  // Closes the socket, waits for open responses to leave, cuts off the rest at the deadline. Nothing calls
  // the engine or a callback afterwards, and nothing the tokenizer where ended(). Any thread that may wait;
  // several may at once. Not from on_drain.
  Status shutdown(Deadline deadline);
  // After shutdown(). False where a text was still being tokenized when its deadline passed: this object's
  // end would wait for that, which can take long, so a process in a hurry ends without it.
  bool ended() const;
  // drain(), then shutdown(): answers have until the deadline to reach who reads them slowly, too, and a
  // second when it has passed.
  Status end(Deadline deadline);

 private:
  class Impl;
  explicit ApiServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace llm_dist::server
