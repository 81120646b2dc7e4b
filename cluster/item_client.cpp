#include "cluster/item_client.h"

namespace llm_dist::cluster {
namespace {

constexpr uint64_t kMaxAnswerBytes = 16 << 20;

class HttpItemClient : public ItemClient {
 public:
  Result<http::Response> request(const http::ClientRequest& request, Deadline deadline) override {
    return client_.request(request, deadline);
  }
  void abort() override { client_.abort(); }

 private:
  http::Client client_{http::ClientOptions{.max_body_bytes = kMaxAnswerBytes}};
};

}  // namespace

std::unique_ptr<ItemClient> make_http_item_client() { return std::make_unique<HttpItemClient>(); }

}  // namespace llm_dist::cluster
