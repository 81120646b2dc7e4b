// ItemClient: what the items of a batch go through to one replica, many at once.
#pragma once

#include <functional>
#include <memory>

#include "src/base/clock.h"
#include "src/http/client.h"

namespace llm_dist::cluster {

// Descriptors that a client takes besides one for each request in flight: its event queue.
constexpr int kItemClientFiles = 3;

// One thread calls everything but what says otherwise, and runs every callback, inside wait().
class ItemClient {
 public:
  // Errors as http::Client has them.
  using OnDone = std::function<void(Result<http::Response>)>;

  virtual ~ItemClient() = default;
  virtual void start(http::ClientRequest request, Deadline deadline, OnDone on_done) = 0;
  // Until something has happened, or wake(), or `until`.
  virtual void wait(TimePoint until) = 0;
  // From any thread: the wait under way ends, or the next one does at once.
  virtual void wake() = 0;
  // From any thread: what is under way ends at once, cancelled, and so does every later request; as wake().
  virtual void abort() = 0;
};

using MakeItemClient = std::function<std::unique_ptr<ItemClient>()>;
std::unique_ptr<ItemClient> make_http_item_client();

}  // namespace llm_dist::cluster
