// One request's response on its way: the handler's threads put bytes in, the connection's I/O thread takes
// them out. Internal to this folder.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "src/http/message.h"

namespace llm_dist::http {

struct ExchangeTraits {
  bool head_request = false;
  bool http_1_0 = false;
  bool keep_alive = true;
  size_t max_queue_bytes = 0;
  ErrorRenderer render_error = plain_error;
};

class Exchange {
 public:
  // `wake` runs on a handler's thread, under this object's lock: it may only post to the I/O thread.
  Exchange(ExchangeTraits traits, std::function<void()> wake);

  // Handler side: see ResponseWriter.
  void add_header(std::string name, std::string value);
  bool send(const Response& response);
  bool start_stream(int status, const Headers& headers);
  bool write(std::string_view chunk);
  bool end();
  void abandon();
  bool disconnected() const { return gone_.load(std::memory_order_acquire); }
  void on_disconnect(std::function<void()> callback);

  // Connection side, on its I/O thread only.
  enum class Next { kWrite, kSource, kWait, kDone, kAbort };
  // kWrite: `bytes` (whose old content is forgotten) holds all that was queued. kSource: what take_source()
  // reads comes next. kWait: `wake` will be called.
  Next next(std::string& bytes);
  std::shared_ptr<BodySource> take_source();
  bool ended() const;
  // The client was cut off (queue over its cap) or the handler gave up in mid-stream.
  bool must_abort() const;
  // Ask for "Connection: close"; too late once the head is out.
  void close_after();
  bool keep_alive() const;
  // The client is gone, or was cut off: tells the handler unless the response had ended. No wake()
  // afterwards.
  void disconnect();
  // The response is out. No wake() afterwards.
  void detach();

 private:
  bool begin(const Response& response, bool streaming);
  void append_chunk(std::string_view chunk);
  // The connection: what is not out yet never will be.
  void cut();
  // `dropped` takes the callback, to be destroyed without the lock: it may own what calls back in here.
  void finish(std::function<void()>& dropped);
  void notify();

  const ExchangeTraits traits_;
  mutable std::mutex mutex_;
  std::function<void()> wake_;
  std::function<void()> on_disconnect_;
  Headers added_;  // by add_header
  std::string pending_;
  std::shared_ptr<BodySource> source_;  // of what follows it
  size_t writing_bytes_ = 0;
  size_t largest_chunk_ = 0;
  std::atomic<bool> gone_ = false;
  bool waiting_ = false;   // the connection sleeps until wake()
  bool started_ = false;   // the head is queued
  bool ended_ = false;     // the whole response is queued
  bool aborted_ = false;   // cut the connection
  bool detached_ = false;  // the connection is done with this exchange
  bool keep_alive_;
};

}  // namespace llm_dist::http
