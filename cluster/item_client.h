// ItemClient: what the items of a batch go through to their replica.
#pragma once

#include <functional>
#include <memory>

#include "src/base/clock.h"
#include "src/http/client.h"

namespace llm_dist::cluster {

// One connection. Not thread-safe, but for abort(); errors as http::Client has them.
class ItemClient {
 public:
  virtual ~ItemClient() = default;
  virtual Result<http::Response> request(const http::ClientRequest& request, Deadline deadline) = 0;
  // From any thread: what is under way ends at once, and so does every later request.
  virtual void abort() = 0;
};

using MakeItemClient = std::function<std::unique_ptr<ItemClient>()>;
std::unique_ptr<ItemClient> make_http_item_client();

}  // namespace llm_dist::cluster
