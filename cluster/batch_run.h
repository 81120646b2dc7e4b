// BatchRun: sends the items of one batch to the replicas that serve it, some to each at a time, and records
// what becomes of them. A thread a replica, however many items are with it.
#pragma once

#include <compare>
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
  int concurrency = 16;  // items in flight at a time, on each replica
  int max_tries = 3;     // that end with the item's own failure, in one run
  int max_deaths = 2;    // of engines with the item in flight: then it is given up
  Duration item_timeout = std::chrono::minutes(10);
  Duration backoff = std::chrono::milliseconds(250);  // before the next try; doubles, ± 50 %
  Duration max_backoff = std::chrono::seconds(15);
};

class BatchRun {
 public:
  // As GroupCommit's: `done` is told the outcome once it is durable, on any thread.
  using Enqueue = std::function<void(CommandBody, std::function<void(const Outcome&)> done)>;
  struct Parts {
    Store& store;
    std::function<Outcome(CommandBody)> commit;  // durable when it returns
    Enqueue enqueue;
    std::function<void()> on_done;  // every item is recorded, or the input is lost; on a thread of the run
    BatchRunOptions options{};
    JobId job = 0;
    int64_t total = 0;  // items of the input file
    std::string input_path{};
    std::string endpoint{};  // "/v1/completions"
    std::shared_ptr<Threads> threads = system_threads();
    MakeItemClient connect = make_http_item_client;
    uint64_t seed = std::random_device{}();  // of the back-off's jitter
  };
  // Goes on with what is not recorded yet, once there are replicas. data_loss: the input file is not what it
  // was, or cannot be read.
  static Result<std::unique_ptr<BatchRun>> start(Parts parts);
  // Cuts off what is in flight; nothing is recorded afterwards.
  ~BatchRun();
  BatchRun(const BatchRun&) = delete;
  BatchRun& operator=(const BatchRun&) = delete;

  // data_loss: the input file is not what it was any more, and nothing more is sent.
  Status input_status();

  // From one thread only, these three. Items go to this replica too. False: no thread was to be had for it,
  // which is said once; to be called again.
  bool add(const ReplicaAttempt& attempt, const std::string& url, const std::string& api_key);
  std::vector<ReplicaAttempt> replicas() const;
  // Nothing goes there any more, and what it has is cut off and goes to others. `died`: its engine ended by
  // itself, which is written of what it had in flight. An error: it could not be written, and these items
  // rest until it is called again.
  Status remove(const ReplicaAttempt& attempt, bool died);

 private:
  struct Item {
    ItemPlace place;
    int deaths = 0;  // with any, it runs alone: the next death is then nobody else's
    int tries = 0;   // that ended with its own failure
  };
  using Waiting = std::multimap<TimePoint, Item>;  // by when they may be tried again
  // What became of an item, until the store has it.
  struct Settled {
    Item item;
    RecordItem record;
  };
  // A replica, and what it has of the batch.
  struct Lane {
    ReplicaAttempt attempt;
    std::string url;
    std::string api_key;
    std::unique_ptr<ItemClient> client;
    std::unique_ptr<Thread> thread{};

    // Of its thread alone.
    std::map<int64_t, Settled> writing{};           // by number: with the store
    std::multimap<TimePoint, Settled> unwritten{};  // it did not take them: by when they may be tried again

    // Under mutex_.
    std::vector<std::pair<int64_t, Outcome>> written{};  // what the store said of `writing`
    std::map<int64_t, Item> with_engine{};               // by number: sent, and not known to have left it
    Waiting held{};  // those of with_engine that are to be sent again: nowhere else, while it may have them
    int num_running = 0;  // sent, or answered and not recorded yet
    bool runs_alone = false;
    int num_outages = 0;     // in a row: it turned an item away, or was not there
    TimePoint hold_until{};  // nothing starts before
    bool refused = false;    // the store records nothing of it any more
    bool ending = false;
  };
  enum class Verdict : uint8_t { kCompleted, kFailed, kTryAgain, kWait };
  struct Answer {
    Verdict verdict;
    bool left_engine;  // the engine has done with it: a later death is not its doing
    std::string line{};
  };
  // Which item is next, and from when on it may be sent; max: not before another one is done.
  struct Turn {
    TimePoint start;
    Waiting* from;  // null: it is ready
  };

  explicit BatchRun(Parts parts, BatchInput input)
      : parts_(std::move(parts)), input_(std::move(input)), random_(parts_.seed) {}
  Status find_items();
  Result<BatchRequest> read_request(const ItemPlace& place);
  void work(Lane& lane);
  bool takes_more(const Lane& lane) const;
  void stop(Lane& lane);
  void wake_lanes();
  TimePoint send_items(Lane& lane);
  std::optional<Item> take(Lane& lane, TimePoint& until);
  Turn next_turn(Lane& lane, TimePoint now);
  bool must_be_alone(const Turn& turn) const;
  Item pop(const Turn& turn);
  void send(Lane& lane, const Item& item);
  void answered(Lane& lane, const Item& item, const std::string& custom_id, Answer answer);
  Answer judge(const Item& item, const std::string& custom_id, const Result<http::Response>& response) const;
  Answer judge_error(const Item& item, const std::string& custom_id, StatusCode code) const;
  Answer judge_response(const Item& item, const std::string& custom_id, const http::Response& response) const;
  void write(Lane& lane, Settled settled);
  TimePoint see_to_records(Lane& lane);
  void written(Lane& lane, Settled settled, const Outcome& outcome);
  void put_back(Lane& lane, Item item, const Answer& answer);
  void let_go(Lane& lane, const Item& item);
  void input_lost(const Status& why);
  void finished(Lane& lane, const Item& item);
  CountDeaths deaths_on(const Lane& lane);
  void return_items(Lane& lane, bool died);
  JobId replica_of(const Lane& lane) const { return lane.attempt.job == parts_.job ? 0 : lane.attempt.job; }
  Duration jittered_backoff(int num_failures);

  Parts parts_;
  std::mutex input_mutex_;
  BatchInput input_;  // under input_mutex_ once there are lanes
  std::mutex mutex_;
  Status input_status_;     // under mutex_, as everything below
  std::deque<Item> ready_;  // not sent yet
  Waiting waiting_;
  size_t num_open_ = 0;
  std::mt19937_64 random_;
  std::map<ReplicaAttempt, std::unique_ptr<Lane>>
      lanes_;                     // changed, and read without it, by the caller's thread
  bool told_of_threads_ = false;  // that none is to be had; of the caller's thread
};

}  // namespace llm_dist::cluster
