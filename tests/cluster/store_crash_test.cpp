// Power fails at any write of the store, over and over; a ledger outside remembers what was promised. The
// same check must find the fault in stores that lack a sync, the idempotency check or the epoch check.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "cluster/store/sqlite_store.h"
#include "tests/cluster/crash_vfs.h"
#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster {
namespace {

using testing::a_job;
using testing::apply_one;
using testing::CrashVfs;
using testing::to_state;

// The process ends with its disk: a commit in doubt is not looked up for ever.
Result<std::unique_ptr<Store>> open_on(const CrashVfs& disk) {
  return open_sqlite_store({.path = "s", .vfs = disk.name(), .longest_doubt = Duration::zero()});
}

// What a client that forgets nothing knows.
struct Ledger {
  std::map<std::string, JobId> acknowledged;    // by idempotency key
  std::map<JobId, int64_t> versions;            // the newest that was acknowledged
  std::map<std::string, std::string> in_doubt;  // keys whose answer was lost
  std::vector<std::string> violations;
};

// A store with something taken out.
class MutantStore : public testing::ForwardingStore {
 public:
  enum class Lacks : uint8_t { kNothing, kIdempotencyCheck, kEpochCheck };
  MutantStore(std::unique_ptr<Store> store, Lacks lacks) : ForwardingStore(std::move(store)), lacks_(lacks) {}

  Status apply(std::span<Pending> batch) override {
    for (Pending& pending : batch) {
      auto* submit = std::get_if<SubmitJob>(&pending.command.body);
      if (lacks_ == Lacks::kIdempotencyCheck && submit != nullptr) submit->idempotency = {};
      if (lacks_ == Lacks::kEpochCheck) pending.command.epoch = epoch();
    }
    return ForwardingStore::apply(batch);
  }

 private:
  Lacks lacks_;
};

class CrashRun {
 public:
  CrashRun(uint64_t seed, bool lying_disk, MutantStore::Lacks lacks)
      : disk_("crash-" + std::to_string(seed), seed), random_(seed), lacks_(lacks) {
    disk_.set_lying(lying_disk);
  }

  Ledger run(int num_crashes) {
    for (int i = 0; i < num_crashes && ledger_.violations.empty(); ++i) {
      live_until_crash();
      disk_.restart();
      check();
    }
    return std::move(ledger_);
  }

 private:
  std::unique_ptr<Store> open() {
    auto opened = open_on(disk_);
    if (opened.ok()) return std::make_unique<MutantStore>(std::move(opened).value(), lacks_);
    if (!disk_.crashed()) violate("the store does not open: " + opened.status().to_string());
    return nullptr;
  }
  void violate(const std::string& what) { ledger_.violations.push_back(what); }

  void live_until_crash() {
    disk_.crash_after(1 + static_cast<int64_t>(random_() % 120));
    std::unique_ptr<Store> store = open();
    while (store != nullptr && !disk_.crashed() && ledger_.violations.empty()) {
      if (!old_epoch_) old_epoch_ = store->epoch();
      write_batch(*store);
      haunt(*store);
    }
    old_epoch_ = store == nullptr ? old_epoch_ : store->epoch();
  }

  // What the client does not know the answer of it asks again, with the same key.
  void write_batch(Store& store) {
    std::vector<Pending> batch;
    std::vector<std::string> keys;
    auto add = [&](CommandBody body, std::string key) {
      batch.push_back(testing::pending(store, std::move(body)));
      keys.push_back(std::move(key));
    };
    for (const auto& [key, hash] : ledger_.in_doubt) add(a_job(key), key);
    for (size_t i = 0, n = 1 + random_() % 4; i < n; ++i) {
      std::string key = "key-" + std::to_string(++last_key_);
      ledger_.in_doubt[key] = "h";
      add(a_job(key), key);
    }
    if (std::optional<CommandBody> change = some_change(store)) add(*change, "");
    Status status = store.apply(batch);
    if (!status.ok()) return;
    for (size_t i = 0; i < batch.size(); ++i) acknowledge(batch[i], keys[i]);
  }

  std::optional<CommandBody> some_change(Store& store) {
    if (ledger_.versions.empty()) return std::nullopt;
    auto chosen = ledger_.versions.begin();
    std::advance(chosen, random_() % ledger_.versions.size());
    Result<Job> job = store.job(chosen->first);
    if (!job.ok() || is_terminal(job.value().state)) return std::nullopt;
    switch (job.value().state) {
      case JobState::kQueued:
      case JobState::kRecovering: return StartAttempt{.job = job.value().id, .launcher = "l", .slots = 1};
      case JobState::kStarting: return to_state(job.value().id, JobState::kRunning);
      default: return to_state(job.value().id, JobState::kRecovering);
    }
  }

  void acknowledge(const Pending& pending, const std::string& key) {
    if (!pending.outcome.ok()) {
      violate("a legal command was refused: " + pending.outcome.status().to_string());
      return;
    }
    const Written& written = pending.outcome.value();
    if (!key.empty()) {
      if (!written.replayed && ledger_.versions.contains(written.id)) {
        violate("id used twice: " + job_name(written.id));
      }
      ledger_.acknowledged[key] = written.id;
      ledger_.in_doubt.erase(key);
    }
    int64_t& version = ledger_.versions[written.id];
    version = std::max(version, written.version);
  }

  // A coordinator of an earlier life that does not know it is dead.
  void haunt(Store& store) {
    if (!old_epoch_ || *old_epoch_ == store.epoch()) return;
    Outcome outcome = apply_one(store, a_job(), *old_epoch_);
    if (outcome.ok()) violate("a command of an older epoch was carried out");
  }

  void check() {
    std::unique_ptr<Store> store = open();
    if (store == nullptr) return;
    for (const auto& [key, id] : ledger_.acknowledged) {
      if (!store->job(id).ok()) violate("lost: " + key + " " + job_name(id));
    }
    for (const auto& [id, version] : ledger_.versions) check_history(*store, id, version);
    check_each_key_once(*store);
  }

  void check_history(Store& store, JobId id, int64_t version) {
    Result<Job> job = store.job(id);
    if (!job.ok()) return;
    if (job.value().version < version) violate("went back: " + job_name(id));
    std::vector<Event> events = store.events(id, 0, 10'000).value();
    std::optional<JobState> state;
    int64_t number = 0;
    for (const Event& event : events) {
      bool legal = !state || *state == event.to || may_become(*state, event.to);
      if (event.number != ++number || event.from != state || !legal) violate("a gap in " + job_name(id));
      state = event.to;
    }
    if (number != job.value().version || state != job.value().state) violate("a change without event");
  }

  // Jobs without a promise may exist (the answer was lost), but never two for one key.
  void check_each_key_once(Store& store) {
    size_t num_jobs = store.jobs({.limit = 1'000'000}).value().size();
    if (num_jobs > static_cast<size_t>(last_key_)) violate("more jobs than were ever asked for");
    std::set<JobId> ids;
    for (const auto& [key, id] : ledger_.acknowledged) {
      if (!ids.insert(id).second) violate("two keys share " + job_name(id));
    }
  }

  CrashVfs disk_;
  std::mt19937_64 random_;
  MutantStore::Lacks lacks_;
  Ledger ledger_;
  std::optional<int64_t> old_epoch_;
  int64_t last_key_ = 0;
};

int num_seeds() { return std::getenv("LLM_DIST_FULL") != nullptr ? 200 : 4; }

std::string first_violation(bool lying_disk, MutantStore::Lacks lacks) {
  for (int seed = 1; seed <= num_seeds(); ++seed) {
    Ledger ledger = CrashRun(seed, lying_disk, lacks).run(25);
    if (!ledger.violations.empty()) return "seed " + std::to_string(seed) + ": " + ledger.violations[0];
    EXPECT_GT(ledger.acknowledged.size(), 20u) << "a run that promises nothing proves nothing";
  }
  return "";
}

TEST(StoreCrash, NothingPromisedIsLost) {
  EXPECT_EQ(first_violation(false, MutantStore::Lacks::kNothing), "");
}
TEST(StoreCrash, TheCheckFindsAMissingSync) {
  EXPECT_NE(first_violation(true, MutantStore::Lacks::kNothing), "");
}
TEST(StoreCrash, TheCheckFindsAMissingIdempotencyCheck) {
  EXPECT_NE(first_violation(false, MutantStore::Lacks::kIdempotencyCheck), "");
}
TEST(StoreCrash, TheCheckFindsAMissingEpochCheck) {
  EXPECT_NE(first_violation(false, MutantStore::Lacks::kEpochCheck), "");
}

// Items of a batch, recorded while power fails: what was acknowledged stays, once, and the counts agree with
// it.
TEST(StoreCrash, WhatIsRecordedOfABatchStays) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    CrashVfs disk("items-" + std::to_string(seed), seed);
    std::mt19937_64 random(seed);
    JobId id = 0;
    {
      auto store = std::move(open_on(disk)).value();
      FileId file = apply_one(*store, AddFile{.filename = "f", .content = "c"}).value().id;
      SubmitJob submit = a_job();
      submit.kind = JobKind::kBatchInference;
      submit.batch = NewBatch{file, "24h", "null", 10'000};
      id = apply_one(*store, submit).value().id;
      ASSERT_TRUE(apply_one(*store, StartAttempt{.job = id, .slots = 1}).ok());
      ASSERT_TRUE(apply_one(*store, to_state(id, JobState::kRunning)).ok());
    }
    std::set<int64_t> acknowledged;
    for (int crash = 0; crash < 25; ++crash) {
      disk.crash_after(1 + static_cast<int64_t>(random() % 120));
      auto opened = open_on(disk);
      if (opened.ok()) {
        while (!disk.crashed()) {
          auto number = static_cast<int64_t>(random() % 300);
          RecordItem record{id, 1, number, std::to_string(number), number % 2 == 0, "line"};
          if (!apply_one(**opened, record).ok()) continue;
          EXPECT_TRUE(acknowledged.insert(number).second) << "recorded twice: " << number;
        }
        opened.value().reset();
      }
      disk.restart();
      auto store = std::move(open_on(disk)).value();
      std::set<int64_t> found;
      const std::vector<ItemRecord> items = store->batches().items(id, -1, SIZE_MAX).value();
      for (const ItemRecord& item : items) found.insert(item.number);
      for (int64_t number : acknowledged) EXPECT_TRUE(found.contains(number)) << "lost: " << number;
      Batch batch = store->batches().batch(id).value();
      EXPECT_EQ(batch.completed + batch.failed, static_cast<int64_t>(found.size()));
      acknowledged = found;
    }
    EXPECT_GT(acknowledged.size(), 50u) << "a run that promises nothing proves nothing";
  }
}

// A sync that fails leaves the commit in doubt: the answer must be what a restart would find.
TEST(StoreCrash, AFailedSyncIsResolvedBeforeTheAnswer) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CrashVfs disk("doubt-" + std::to_string(seed), seed);
    auto store = std::move(open_on(disk)).value();
    ASSERT_TRUE(apply_one(*store, a_job("before")).ok());
    disk.fail_next_sync("-wal");
    Outcome doubtful = apply_one(*store, a_job("doubtful"));
    EXPECT_EQ(store->jobs({}).value().size(), doubtful.ok() ? 2u : 1u);
    disk.crash_after(1);
    Outcome lost = apply_one(*store, a_job("lost"));
    EXPECT_FALSE(lost.ok());
    store.reset();
    disk.restart();
    store = std::move(open_on(disk)).value();
    Outcome again = apply_one(*store, a_job("doubtful"));
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(again.value().replayed, doubtful.ok()) << "seed " << seed;
  }
}

// The log is read anew after the failed sync and holds the batch: it counts, and only a checkpoint makes it
// last, which others may hold up for a while.
TEST(StoreCrash, WhatIsFoundAfterAFailedSyncLastsBeforeTheAnswer) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    CrashVfs disk("found-" + std::to_string(seed), seed);
    auto store = std::move(open_sqlite_store({.path = "s", .vfs = disk.name()})).value();
    ASSERT_TRUE(apply_one(*store, a_job("before")).ok());
    disk.fail_next_sync_and_forget("-wal");
    disk.refuse_openings(1);
    disk.refuse_checkpoints(2);
    Outcome found = apply_one(*store, a_job("found"));
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    EXPECT_EQ(store->jobs({}).value().size(), 2u);
    disk.crash_after(1);
    store.reset();
    disk.restart();
    store = std::move(open_on(disk)).value();
    EXPECT_TRUE(store->job(found.value().id).ok()) << "seed " << seed;
  }
}

TEST(StoreCrash, AFullDiskIsSaidAtOnceAndMendsItself) {
  CrashVfs disk("full");
  auto store = std::move(open_sqlite_store({.path = "s", .vfs = disk.name()})).value();
  disk.set_full(true);
  EXPECT_EQ(apply_one(*store, a_job("k")).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(apply_one(*store, a_job("k")).status().code(), StatusCode::kResourceExhausted);
  disk.set_full(false);
  Outcome written = apply_one(*store, a_job("k"));
  ASSERT_TRUE(written.ok()) << written.status().to_string();
  EXPECT_FALSE(written.value().replayed);
}

}  // namespace
}  // namespace llm_dist::cluster
