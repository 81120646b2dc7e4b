#include "cluster/item_client.h"

#include <atomic>

#include "src/http/async_client.h"

namespace llm_dist::cluster {
namespace {

constexpr uint64_t kMaxAnswerBytes = 16 << 20;

class HttpItemClient : public ItemClient {
 public:
  void start(http::ClientRequest request, Deadline deadline, OnDone on_done) override {
    client_.start(std::move(request), deadline, {}, std::move(on_done));
  }
  void wait(TimePoint until) override {
    if (aborted_) client_.cancel_all();
    client_.run_one(Deadline::at(until));
  }
  void wake() override { client_.wake(); }
  void abort() override {
    aborted_ = true;
    client_.wake();
  }

 private:
  http::AsyncClient client_{http::ClientOptions{.max_body_bytes = kMaxAnswerBytes}};
  std::atomic<bool> aborted_ = false;
};

}  // namespace

std::unique_ptr<ItemClient> make_http_item_client() { return std::make_unique<HttpItemClient>(); }

}  // namespace llm_dist::cluster
