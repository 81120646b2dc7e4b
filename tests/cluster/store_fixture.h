// What the tests of a store share: a folder that goes away, commands in few words.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cluster/store/store.h"

namespace llm_dist::cluster::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    // In memory where possible: these tests are about what is written, not about the disk.
    std::error_code error;
    bool memory = std::filesystem::is_directory("/dev/shm", error);
    std::string pattern =
        (memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) + "/llm-dist-store-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// While it lives, no file grows beyond `bytes`.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes = 0) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    rlimit lower{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &lower), 0);
  }
  ~FullDisk() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  sighandler_t handler_;
  rlimit before_{};
};

// Another store, for tests that change something about it.
class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(std::unique_ptr<Store> store) : store_(std::move(store)) {}

  int64_t epoch() const override { return store_->epoch(); }
  Status apply(std::span<Pending> batch) override { return store_->apply(batch); }
  Result<Job> job(JobId id) override { return store_->job(id); }
  Result<std::vector<Job>> jobs(const JobFilter& filter) override { return store_->jobs(filter); }
  Result<std::vector<Event>> events(JobId job, int64_t after, int limit) override {
    return store_->events(job, after, limit);
  }
  Result<std::vector<Attempt>> attempts(JobId job) override { return store_->attempts(job); }
  Result<JobCounts> counts() override { return store_->counts(); }
  Result<std::vector<Job>> waiting(const WaitingFilter& filter) override { return store_->waiting(filter); }
  Result<std::vector<HeldSlots>> held_slots() override { return store_->held_slots(); }
  Result<std::vector<ProjectUsage>> projects() override { return store_->projects(); }
  Result<std::optional<GivenAnswer>> answer_to(const std::string& project, const std::string& key) override {
    return store_->answer_to(project, key);
  }
  Result<std::vector<Job>> overdue(Overdue what, int64_t at_us, int limit) override {
    return store_->overdue(what, at_us, limit);
  }
  BatchStore& batches() override { return store_->batches(); }

 private:
  std::unique_ptr<Store> store_;
};

// A kind of store, which must keep what every store promises.
struct Implementation {
  const char* name;
  // The same place again: the same store.
  Result<std::unique_ptr<Store>> (*open)(const std::string& place);
};

// An empty store of each implementation: instantiate with ValuesIn(every_store()) and name_of_store.
class EveryStore : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override { reopen(); }
  void reopen();

  TemporaryFolder folder_;
  std::unique_ptr<Store> store_;
};
std::vector<Implementation> every_store();
std::string name_of_store(const ::testing::TestParamInfo<Implementation>& instance);

SubmitJob a_job(std::string key = "", std::string hash = "h");

// With the store's own epoch unless another is given.
Pending pending(const Store& store, CommandBody body, int64_t epoch = -1, int64_t at_us = 5);
Outcome apply_one(Store& store, CommandBody body, int64_t epoch = -1);

// Ends the current attempt where the new state may have none.
ChangeJob to_state(JobId job, JobState state);

}  // namespace llm_dist::cluster::testing
