// The handle by which a request is answered, from any thread, now or later.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "src/http/message.h"

namespace llm_dist::http {

class Exchange;

// Answers one request: send() once, or start_stream(), write()…, end(). Every method is thread-safe and
// returns at once. The methods return false when nothing more can reach the client (it is gone, or the
// response has ended already). Dropping the last reference without an answer sends a 500; dropping it in
// mid-stream cuts the connection, so that the client sees a truncated body and not a complete one.
class ResponseWriter {
 public:
  explicit ResponseWriter(std::shared_ptr<Exchange> exchange);
  ~ResponseWriter();
  ResponseWriter(const ResponseWriter&) = delete;
  ResponseWriter& operator=(const ResponseWriter&) = delete;

  // Goes out with the head of whatever answer comes, the one for a dropped writer included. Without effect
  // once a head is out.
  void add_header(std::string name, std::string value);

  bool send(const Response& response);

  // Chunked to HTTP/1.1 clients, ended by closing to HTTP/1.0 ones.
  bool start_stream(int status, const Headers& headers);
  // Queued; what queues up while the socket is busy leaves in one socket write. A client that lets more than
  // ServerOptions::max_write_queue_bytes wait, beside as much as the largest chunk so far, is cut off.
  bool write(std::string_view chunk);
  bool end();

  bool disconnected() const;
  // The callback runs once, on an I/O thread, if the client goes away before the response has ended; at once,
  // on this thread, if it is gone already. It should not own this writer: a writer dropped by everybody else
  // would then go unnoticed until the client leaves.
  void on_disconnect(std::function<void()> callback);

 private:
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace llm_dist::http
