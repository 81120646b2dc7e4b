#include "cluster/replica_watch.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "src/http/client.h"

namespace llm_dist::cluster {
namespace {

class HttpWatch : public ReplicaWatch {
 public:
  HttpWatch(Duration period, Duration timeout)
      : period_(period), timeout_(timeout), thread_([this] { run(); }) {}
  ~HttpWatch() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void watch(const std::string& endpoint) override {
    std::lock_guard lock(mutex_);
    last_well_.try_emplace(endpoint, Clock::now());
  }
  void forget(const std::string& endpoint) override {
    std::lock_guard lock(mutex_);
    last_well_.erase(endpoint);
    failing_.erase(endpoint);
  }
  int64_t failing_us(const std::string& endpoint) override {
    std::lock_guard lock(mutex_);
    if (!failing_.contains(endpoint)) return 0;
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - last_well_.at(endpoint))
        .count();
  }

 private:
  void run() {
    while (true) {
      std::vector<std::string> endpoints;
      {
        std::unique_lock lock(mutex_);
        wake_.wait_for(lock, period_, [this] { return stopping_; });
        if (stopping_) return;
        for (const auto& [endpoint, when] : last_well_) endpoints.push_back(endpoint);
      }
      for (const std::string& endpoint : endpoints) ask(endpoint);
    }
  }
  void ask(const std::string& endpoint) {
    auto answer = http::request({.url = endpoint + "/livez"}, Deadline::after(timeout_));
    bool well = answer.ok() && answer.value().status == 200;
    std::lock_guard lock(mutex_);
    auto entry = last_well_.find(endpoint);
    if (entry == last_well_.end()) return;
    if (well) {
      entry->second = Clock::now();
      failing_.erase(endpoint);
    } else {
      failing_.insert(endpoint);
    }
  }

  const Duration period_;
  const Duration timeout_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::string, TimePoint> last_well_;
  std::set<std::string> failing_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<ReplicaWatch> make_http_watch(Duration period, Duration timeout) {
  return std::make_unique<HttpWatch>(period, timeout);
}

}  // namespace llm_dist::cluster
