#include "cluster/replica_watch.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
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
    failing_.try_emplace(endpoint);
  }
  void forget(const std::string& endpoint) override {
    std::lock_guard lock(mutex_);
    failing_.erase(endpoint);
    to_drain_.erase(endpoint);
  }
  int64_t failing_us(const std::string& endpoint) override {
    std::lock_guard lock(mutex_);
    auto entry = failing_.find(endpoint);
    if (entry == failing_.end() || !entry->second) return 0;
    Duration failing = entry->second->last - entry->second->first;
    return std::chrono::duration_cast<std::chrono::microseconds>(failing).count();
  }
  void drain(const std::string& endpoint, const std::string& api_key) override {
    {
      std::lock_guard lock(mutex_);
      to_drain_.insert_or_assign(endpoint, api_key);
      woken_ = true;
    }
    wake_.notify_all();
  }

 private:
  // Probes that failed in a row. Until the next one nothing is known: a round of probes may take long.
  struct Failing {
    TimePoint first;
    TimePoint last;
  };

  void run() {
    while (true) {
      std::vector<std::string> endpoints;
      std::map<std::string, std::string> to_drain;
      {
        std::unique_lock lock(mutex_);
        wake_.wait_for(lock, period_, [this] { return stopping_ || woken_; });
        if (stopping_) return;
        woken_ = false;
        for (const auto& [endpoint, failing] : failing_) endpoints.push_back(endpoint);
        to_drain = to_drain_;
      }
      for (const auto& [endpoint, api_key] : to_drain) {
        if (stopping()) return;
        tell_to_drain(endpoint, api_key);
      }
      for (const std::string& endpoint : endpoints) {
        if (stopping()) return;
        ask(endpoint);
      }
    }
  }
  bool stopping() {
    std::lock_guard lock(mutex_);
    return stopping_;
  }
  void ask(const std::string& endpoint) {
    auto answer = http::request({.url = endpoint + "/livez"}, Deadline::after(timeout_));
    bool well = answer.ok() && answer.value().status == 200;
    // What could not be asked may be well: a row of failures ends here too.
    bool unasked = answer.status().code() == StatusCode::kResourceExhausted;
    std::lock_guard lock(mutex_);
    auto entry = failing_.find(endpoint);
    if (entry == failing_.end()) return;
    TimePoint now = Clock::now();
    std::optional<Failing>& failing = entry->second;
    failing = well || unasked ? std::nullopt : std::optional(Failing{failing ? failing->first : now, now});
  }
  void tell_to_drain(const std::string& endpoint, const std::string& api_key) {
    auto answer = http::request({.method = "POST",
                                 .url = endpoint + "/admin/drain",
                                 .headers = {{"Authorization", "Bearer " + api_key}}},
                                Deadline::after(timeout_));
    bool heard = answer.ok() && answer.value().status / 100 == 2;
    if (!heard) return;
    std::lock_guard lock(mutex_);
    to_drain_.erase(endpoint);
  }

  const Duration period_;
  const Duration timeout_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::string, std::optional<Failing>> failing_;
  std::map<std::string, std::string> to_drain_;  // endpoint and key
  bool woken_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<ReplicaWatch> make_http_watch(Duration period, Duration timeout) {
  return std::make_unique<HttpWatch>(period, timeout);
}

}  // namespace llm_dist::cluster
