#include "cluster/replica_watch.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "src/base/format.h"
#include "src/base/log.h"
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

  void watch(const ReplicaAttempt& replica, const std::string& endpoint) override {
    std::lock_guard lock(mutex_);
    watched_.insert_or_assign(replica, Watched{.endpoint = endpoint});
  }
  void forget(const ReplicaAttempt& replica) override {
    std::lock_guard lock(mutex_);
    watched_.erase(replica);
  }
  int64_t failing_us(const ReplicaAttempt& replica) override {
    std::lock_guard lock(mutex_);
    auto entry = watched_.find(replica);
    if (entry == watched_.end() || !entry->second.failing) return 0;
    Duration failing = entry->second.failing->last - entry->second.failing->first;
    return std::chrono::duration_cast<std::chrono::microseconds>(failing).count();
  }
  void drain(const ReplicaAttempt& replica, const std::string& api_key) override {
    {
      std::lock_guard lock(mutex_);
      auto entry = watched_.find(replica);
      if (entry == watched_.end()) return;
      entry->second.drain_key = api_key;
      entry->second.ends = true;
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
  struct Watched {
    std::string endpoint;
    std::optional<Failing> failing{};
    std::optional<std::string> drain_key{};  // it is to be told to drain, by this key
    bool ends = false;                       // because it was
  };

  void run() {
    while (true) {
      std::map<ReplicaAttempt, Watched> watched;
      {
        std::unique_lock lock(mutex_);
        wake_.wait_for(lock, period_, [this] { return stopping_ || woken_; });
        if (stopping_) return;
        woken_ = false;
        watched = watched_;
      }
      for (const auto& [replica, each] : watched) {
        if (stopping()) return;
        if (each.drain_key) tell_to_drain(replica, each.endpoint, *each.drain_key);
      }
      for (const auto& [replica, each] : watched) {
        if (stopping()) return;
        ask(replica, each.endpoint);
      }
    }
  }
  bool stopping() {
    std::lock_guard lock(mutex_);
    return stopping_;
  }
  void ask(const ReplicaAttempt& replica, const std::string& endpoint) {
    auto answer = http::request({.url = endpoint + "/livez"}, Deadline::after(timeout_));
    bool well = answer.ok() && answer.value().status == 200;
    // What could not be asked may be well: a row of failures ends here too.
    bool unasked = answer.status().code() == StatusCode::kResourceExhausted;
    std::lock_guard lock(mutex_);
    auto entry = watched_.find(replica);
    if (entry == watched_.end()) return;
    TimePoint now = Clock::now();
    std::optional<Failing>& failing = entry->second.failing;
    // The second in a row: the first may be all that is seen of a replica that ends by itself.
    bool second = failing && failing->first == failing->last;
    if (!well && !unasked && second && !entry->second.ends) {
      std::string why =
          answer.ok() ? format("it answers {}", answer.value().status) : answer.status().message();
      log_warning(
          "{} attempt {} at {} is not well: {}", job_name(replica.job), replica.number, endpoint, why);
    }
    failing = well || unasked ? std::nullopt : std::optional(Failing{failing ? failing->first : now, now});
  }
  void tell_to_drain(const ReplicaAttempt& replica, const std::string& endpoint, const std::string& api_key) {
    auto answer = http::request({.method = "POST",
                                 .url = endpoint + "/admin/drain",
                                 .headers = {{"Authorization", "Bearer " + api_key}}},
                                Deadline::after(timeout_));
    bool heard = answer.ok() && answer.value().status / 100 == 2;
    if (!heard) return;
    std::lock_guard lock(mutex_);
    auto entry = watched_.find(replica);
    if (entry != watched_.end()) entry->second.drain_key.reset();
  }

  const Duration period_;
  const Duration timeout_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<ReplicaAttempt, Watched> watched_;
  bool woken_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<ReplicaWatch> make_http_watch(Duration period, Duration timeout) {
  return std::make_unique<HttpWatch>(period, timeout);
}

}  // namespace llm_dist::cluster
