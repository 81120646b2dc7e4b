// BatchRun: sends the items of one batch to one attempt's replica, some at a time, and records what becomes
// of them.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "cluster/batch_input.h"
#include "cluster/item_client.h"
#include "cluster/store/store.h"
#include "cluster/threads.h"
#include "src/base/clock.h"

namespace llm_dist::cluster {

struct BatchRunOptions {
  int concurrency = 16;  // items in flight at a time
  int max_tries = 3;     // that end with the item's own failure, on one attempt
  int max_deaths = 2;    // of engines with the item in flight: then it is given up
  Duration item_timeout = std::chrono::minutes(10);
  Duration backoff = std::chrono::milliseconds(250);  // before the next try; doubles, ± 50 %
  Duration max_backoff = std::chrono::seconds(15);
};

class BatchRun {
 public:
  struct Parts {
    Store& store;
    std::function<Outcome(CommandBody)> commit;  // durable when it returns
    std::function<void()> on_done;               // every item is recorded; on a thread of the run
    BatchRunOptions options{};
    JobId job = 0;
    int64_t attempt = 0;
    int64_t total = 0;  // items of the input file
    std::string input_path{};
    std::string replica_url{};
    std::string endpoint{};  // "/v1/completions"
    std::string api_key{};
    std::shared_ptr<Threads> threads = system_threads();
    MakeItemClient connect = make_http_item_client;
    uint64_t seed = std::random_device{}();  // of the back-off's jitter
  };
  // Goes on with what is not recorded yet. data_loss: the input file is not what it was, or cannot be read.
  static Result<std::unique_ptr<BatchRun>> start(Parts parts);
  // Cuts off what is in flight.
  ~BatchRun();
  BatchRun(const BatchRun&) = delete;
  BatchRun& operator=(const BatchRun&) = delete;

  int64_t attempt() const { return parts_.attempt; }
  // Cuts off what is in flight; nothing is recorded afterwards.
  void stop();
  // After stop(): what the engine had when it was cut off, and what it never answered.
  std::vector<CountDeaths::Item> in_flight();

 private:
  struct Item {
    ItemPlace place;
    int deaths = 0;  // with any, it runs alone: the next death is then nobody else's
    int tries = 0;   // that ended with its own failure
  };
  enum class Verdict : uint8_t { kCompleted, kFailed, kTryAgain, kWait };
  struct Answer {
    Verdict verdict;
    bool left_engine;  // the engine has done with it: a later death is not its doing
    std::string line{};
  };

  explicit BatchRun(Parts parts, BatchInput input)
      : parts_(std::move(parts)),
        input_(std::move(input)),
        changed_(parts_.threads->make_condition()),
        random_(parts_.seed) {}
  Status find_items();
  void start_threads();
  void work(ItemClient& client);
  std::optional<Item> take();
  TimePoint next_start() const;
  Item pop_next(bool due);
  bool execute(ItemClient& client, Item item);
  Answer ask(ItemClient& client, const Item& item, const BatchRequest& request);
  Answer judge(const Item& item, const BatchRequest& request, const http::Response& response) const;
  bool record(const Item& item, const std::string& custom_id, const Answer& answer);
  void put_back(Item item, const Answer& answer);
  void finished(const Item& item);
  Duration jittered_backoff(int num_failures);
  bool pause(Duration time);

  Parts parts_;
  BatchInput input_;  // under mutex_ once threads run
  std::mutex mutex_;
  const std::unique_ptr<Condition> changed_;
  std::deque<Item> ready_;                  // under mutex_, as everything below
  std::multimap<TimePoint, Item> waiting_;  // by when they may be tried again
  std::map<int64_t, Item> with_engine_;     // by number: sent, and not known to have left it
  int num_running_ = 0;
  bool runs_alone_ = false;
  int num_outages_ = 0;     // in a row: the replica turned an item away, or was not there
  TimePoint hold_until_{};  // nothing starts before
  size_t num_open_ = 0;
  bool stopping_ = false;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<ItemClient>> clients_;
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace llm_dist::cluster
