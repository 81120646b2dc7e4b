// What is left of jobs goes some time after their end.
#include "cluster/retention.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cluster/store/sqlite_store.h"
#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster {
namespace {

constexpr int64_t kHourUs = 3600LL * 1'000'000;

class RetentionTest : public ::testing::Test {
 protected:
  Outcome commit(CommandBody body) {
    std::vector<Pending> batch = {testing::pending(*store_, std::move(body), -1, now_us_)};
    Status status = store_->apply(batch);
    return status.ok() ? batch[0].outcome : Outcome(status);
  }
  // A job that ends now, with a log.
  JobId end_one() {
    JobId id = commit(testing::a_job()).value().id;
    std::filesystem::create_directories(folder_of(id) + "/1");
    std::ofstream(folder_of(id) + "/1/log") << "x";
    EXPECT_TRUE(commit(ChangeJob{.job = id, .to = JobState::kCancelled}).ok());
    return id;
  }
  std::string folder_of(JobId id) { return folder_.file("jobs/" + job_name(id)); }
  Retention retention(int64_t keep_us) {
    return Retention({.store = *store_,
                      .commit = [this](CommandBody body) { return commit(std::move(body)); },
                      .attempts_folder = folder_.file("jobs"),
                      .keep_us = keep_us,
                      .now_us = [this] { return now_us_; }});
  }

  testing::TemporaryFolder folder_;
  std::unique_ptr<Store> store_ = std::move(open_sqlite_store({.path = folder_.file("store")})).value();
  int64_t now_us_ = 1000 * kHourUs;
};

TEST_F(RetentionTest, WhatEndedLongAgoGoesWithItsLogs) {
  JobId old = end_one();
  JobId waiting = commit(testing::a_job()).value().id;
  now_us_ += kHourUs;
  JobId young = end_one();
  now_us_ += kHourUs;
  EXPECT_EQ(retention(0).tick().value(), false);
  EXPECT_TRUE(store_->job(old).ok()) << "for ever";
  EXPECT_EQ(retention(kHourUs + 1).tick().value(), false);
  EXPECT_EQ(store_->job(old).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(folder_of(old)));
  EXPECT_TRUE(store_->job(waiting).ok());
  EXPECT_TRUE(store_->job(young).ok());
  EXPECT_TRUE(std::filesystem::exists(folder_of(young) + "/1/log"));
}

TEST_F(RetentionTest, ManyGoAFewAtATime) {
  for (int i = 0; i < 70; ++i) end_one();
  now_us_ += kHourUs;
  Retention some = retention(1);
  EXPECT_EQ(some.tick().value(), true);
  EXPECT_EQ(store_->jobs({.limit = 100}).value().size(), 6u);
  EXPECT_EQ(some.tick().value(), false);
  EXPECT_TRUE(store_->jobs({.limit = 100}).value().empty());
}

}  // namespace
}  // namespace llm_dist::cluster
