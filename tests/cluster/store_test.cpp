// What every store promises, whichever database stands below it.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <thread>
#include <tuple>

#include "cluster/store/location.h"
#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster {
namespace {

using testing::a_job;
using testing::apply_one;
using testing::to_state;
using enum JobState;

class StoreTest : public testing::EveryStore {
 protected:
  JobId submit(SubmitJob job = a_job()) { return apply_one(*store_, std::move(job)).value().id; }
  Job job(JobId id) { return store_->job(id).value(); }
  // One way to each state from QUEUED.
  JobId job_in(JobState state) {
    JobId id = submit();
    for (JobState next : path_to(state)) {
      Outcome outcome = next == kStarting
                            ? apply_one(*store_, StartAttempt{.job = id, .launcher = "l", .slots = 1})
                            : apply_one(*store_, change(id, next));
      EXPECT_TRUE(outcome.ok()) << to_string(next) << ": " << outcome.status().to_string();
    }
    EXPECT_EQ(job(id).state, state);
    return id;
  }
  ChangeJob change(JobId id, JobState next) {
    ChangeJob change = to_state(id, next);
    auto attempts = store_->attempts(id).value();
    if (attempts.empty() || attempts.back().state == AttemptState::kEnded) change.attempt_change.reset();
    return change;
  }
  static std::vector<JobState> path_to(JobState state) {
    switch (state) {
      case kQueued: return {};
      case kStarting: return {kStarting};
      case kRunning: return {kStarting, kRunning};
      case kSuspended: return {kSuspended};
      case kRecovering: return {kStarting, kRecovering};
      case kCancelling: return {kStarting, kRunning, kCancelling};
      case kFinalizing: return {kStarting, kRunning, kFinalizing};
      case kSucceeded: return {kStarting, kRunning, kFinalizing, kSucceeded};
      case kFailed: return {kFailed};
      case kCancelled: return {kCancelled};
      case kExpired: return {kExpired};
    }
    return {};
  }
  static std::vector<JobState> all_states() {
    std::vector<JobState> states;
    for (int i = 0; i < kNumJobStates; ++i) states.push_back(static_cast<JobState>(i));
    return states;
  }
};

TEST_P(StoreTest, SubmittedJobIsThereAfterReopening) {
  JobId id = submit({.project = "alpha",
                     .kind = JobKind::kServe,
                     .spec = R"({"model":"é\u0000"})",
                     .priority = -3,
                     .expires_us = 99});
  int64_t epoch = store_->epoch();
  reopen();
  EXPECT_GT(store_->epoch(), epoch);
  Job back = job(id);
  EXPECT_EQ(back.project, "alpha");
  EXPECT_EQ(back.kind, JobKind::kServe);
  EXPECT_EQ(back.spec, R"({"model":"é\u0000"})");
  EXPECT_EQ(back.priority, -3);
  EXPECT_EQ(back.expires_us, 99);
  EXPECT_EQ(back.state, kQueued);
  EXPECT_EQ(back.version, 1);
  EXPECT_EQ(back.epoch, epoch);
  EXPECT_EQ(store_->job(id + 1).status().code(), StatusCode::kNotFound);
}

TEST_P(StoreTest, EachCommandOfABatchStandsAlone) {
  std::vector<Pending> batch;
  for (CommandBody body : std::vector<CommandBody>{
           a_job(), ChangeJob{.job = 999, .to = kFailed}, a_job(), ChangeJob{.job = 1, .to = kSucceeded}}) {
    batch.push_back(testing::pending(*store_, std::move(body)));
  }
  ASSERT_TRUE(store_->apply(batch).ok());
  EXPECT_TRUE(batch[0].outcome.ok());
  EXPECT_EQ(batch[1].outcome.status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(batch[2].outcome.ok());
  EXPECT_EQ(batch[3].outcome.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->jobs({}).value().size(), 2u);
}

TEST_P(StoreTest, OnlyTheTableOfTransitionsHappens) {
  for (JobState from : all_states()) {
    for (JobState to : all_states()) {
      JobId id = job_in(from);
      Job before = job(id);
      Outcome outcome = to == kStarting
                            ? apply_one(*store_, StartAttempt{.job = id, .launcher = "l", .slots = 1})
                            : apply_one(*store_, change(id, to));
      bool allowed = may_become(from, to) || (from == to && !is_terminal(from) && from != kStarting);
      EXPECT_EQ(outcome.ok(), allowed) << to_string(from) << " to " << to_string(to);
      if (!allowed) {
        EXPECT_EQ(outcome.status().code(), StatusCode::kFailedPrecondition);
        EXPECT_EQ(job(id).version, before.version);
        EXPECT_EQ(job(id).state, from);
      }
    }
  }
}

TEST_P(StoreTest, EveryChangeIsAnEventWithoutGaps) {
  JobId id = job_in(kSucceeded);
  auto events = store_->events(id, 0, 100).value();
  ASSERT_EQ(events.size(), 5u);
  std::optional<JobState> last;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].number, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(events[i].from, last);
    last = events[i].to;
  }
  EXPECT_EQ(last, kSucceeded);
  EXPECT_EQ(events.back().number, job(id).version);
  EXPECT_EQ(store_->events(id, 3, 1).value().at(0).number, 4);
}

TEST_P(StoreTest, TheSameKeyIsTheSameJob) {
  JobId first = submit(a_job("k", "h1"));
  Written again = apply_one(*store_, a_job("k", "h1")).value();
  EXPECT_EQ(again.id, first);
  EXPECT_TRUE(again.replayed);
  EXPECT_EQ(apply_one(*store_, a_job("k", "h2")).status().code(), StatusCode::kInvalidArgument);
  SubmitJob other_project = a_job("k", "h1");
  other_project.project = "q";
  EXPECT_NE(submit(other_project), first);
  EXPECT_NE(submit(a_job()), submit(a_job()));  // no key: two jobs
  reopen();
  EXPECT_EQ(submit(a_job("k", "h1")), first);
}

TEST_P(StoreTest, TheSameKeyTwiceInOneBatchIsOneJob) {
  std::vector<Pending> batch(2, testing::pending(*store_, a_job("k")));
  ASSERT_TRUE(store_->apply(batch).ok());
  EXPECT_EQ(batch[0].outcome.value().id, batch[1].outcome.value().id);
  EXPECT_TRUE(batch[1].outcome.value().replayed);
}

TEST_P(StoreTest, AnOlderVersionIsRefused) {
  JobId id = submit();
  ChangeJob change = to_state(id, kSuspended);
  change.attempt_change.reset();
  change.expected_version = 1;
  EXPECT_EQ(apply_one(*store_, change).value().version, 2);
  change.to = kCancelled;
  EXPECT_EQ(apply_one(*store_, change).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(job(id).state, kSuspended);
}

TEST_P(StoreTest, AnOlderCoordinatorIsFenced) {
  JobId id = submit();
  int64_t old_epoch = store_->epoch();
  reopen();
  EXPECT_EQ(apply_one(*store_, a_job(), old_epoch).status().code(), StatusCode::kAborted);
  EXPECT_EQ(apply_one(*store_, a_job("key"), old_epoch).status().code(), StatusCode::kAborted);
  EXPECT_EQ(apply_one(*store_, ChangeJob{.job = id, .to = kFailed}, old_epoch).status().code(),
            StatusCode::kAborted);
  EXPECT_EQ(apply_one(*store_, StartAttempt{.job = id, .slots = 1}, old_epoch).status().code(),
            StatusCode::kAborted);
  EXPECT_EQ(job(id).version, 1);
}

TEST_P(StoreTest, AnAttemptThatIsOverChangesNothing) {
  JobId id = job_in(kRecovering);
  ASSERT_TRUE(apply_one(*store_, StartAttempt{.job = id, .launcher = "l", .slots = 2}).ok());
  EXPECT_EQ(job(id).attempt, 2);
  ChangeAttempt late{.job = id, .attempt = 1, .change = {.endpoint = "http://old"}};
  EXPECT_EQ(apply_one(*store_, late).status().code(), StatusCode::kFailedPrecondition);
  ChangeJob late_job{.job = id, .attempt = 1, .to = kRunning};
  EXPECT_EQ(apply_one(*store_, late_job).status().code(), StatusCode::kFailedPrecondition);
  late.attempt = 2;
  EXPECT_TRUE(apply_one(*store_, late).ok());
  auto attempts = store_->attempts(id).value();
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_EQ(attempts[0].state, AttemptState::kEnded);
  EXPECT_EQ(attempts[0].endpoint, "");
  EXPECT_EQ(attempts[1].endpoint, "http://old");
  EXPECT_EQ(attempts[1].slots, 2);
}

TEST_P(StoreTest, AJobCannotRestWhileItsAttemptLives) {
  JobId id = job_in(kRunning);
  for (JobState state : {kRecovering, kSuspended, kFailed}) {
    EXPECT_EQ(apply_one(*store_, ChangeJob{.job = id, .to = state}).status().code(),
              StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(job(id).state, kRunning);
}

TEST_P(StoreTest, OnlyWhatHasEndedIsRetried) {
  SubmitJob retry = a_job();
  retry.retry_of = job_in(kRunning);
  EXPECT_EQ(apply_one(*store_, retry).status().code(), StatusCode::kFailedPrecondition);
  retry.retry_of = job_in(kFailed);
  EXPECT_EQ(job(submit(retry)).retry_of, retry.retry_of);
}

TEST_P(StoreTest, ListsFilterAndPage) {
  for (int i = 0; i < 10; ++i) {
    SubmitJob job = a_job();
    job.project = i % 2 == 0 ? "even" : "odd";
    job.kind = i < 5 ? JobKind::kServe : JobKind::kBench;
    JobId id = submit(job);
    JobState end = i % 3 == 0 ? kFailed : kCancelled;
    EXPECT_EQ(i % 3 != 2, i % 3 != 2 && apply_one(*store_, ChangeJob{.job = id, .to = end}).ok());
  }
  auto ids = [&](const JobFilter& filter) {
    std::vector<JobId> found;
    for (const std::vector<Job> jobs = store_->jobs(filter).value(); const Job& job : jobs)
      found.push_back(job.id);
    return found;
  };
  EXPECT_EQ(ids({.limit = 3}), (std::vector<JobId>{10, 9, 8}));
  EXPECT_EQ(ids({.before = 8, .limit = 3}), (std::vector<JobId>{7, 6, 5}));
  EXPECT_EQ(ids({.project = "odd"}), (std::vector<JobId>{10, 8, 6, 4, 2}));
  EXPECT_EQ(ids({.kind = JobKind::kServe}), (std::vector<JobId>{5, 4, 3, 2, 1}));
  EXPECT_EQ(ids({.states = {kFailed, kQueued}}), (std::vector<JobId>{10, 9, 7, 6, 4, 3, 1}));
  EXPECT_EQ(ids({.states = {kFailed, kQueued}, .before = 7, .limit = 2}), (std::vector<JobId>{6, 4}));
  EXPECT_EQ(ids({.project = "even", .kind = JobKind::kBench, .states = {kCancelled}}),
            (std::vector<JobId>{}));
  EXPECT_EQ(ids({.project = "odd", .kind = JobKind::kBench, .states = {kCancelled}}),
            (std::vector<JobId>{8}));
  EXPECT_EQ(store_->counts().value().of(kFailed), 4);
  EXPECT_EQ(store_->counts().value().of(kRunning), 0);
}

TEST_P(StoreTest, WaitingLongCountsAsMuchAsPriority) {
  auto submit_at = [&](int64_t minute, int priority) {
    SubmitJob job = a_job();
    job.priority = priority;
    std::vector<Pending> batch = {testing::pending(*store_, job, -1, minute * 60'000'000)};
    EXPECT_TRUE(store_->apply(batch).ok());
  };
  submit_at(1, 0);
  submit_at(2, 1);  // worth ten minutes
  submit_at(3, 0);
  submit_at(4, -1);
  submit_at(30, 2);
  std::vector<JobId> order;
  for (const std::vector<Job> jobs = store_->waiting({.limit = 10}).value(); const Job& job : jobs)
    order.push_back(job.id);
  EXPECT_EQ(order, (std::vector<JobId>{2, 1, 3, 5, 4}));
  EXPECT_EQ(store_->waiting({.limit = 1}).value().size(), 1u);
}

// However priorities, times and projects are mixed: the order is that of waiting plus what priority is worth.
TEST_P(StoreTest, TheOrderOfTurnsIsThatOfItsRule) {
  std::mt19937 random(11);
  std::vector<std::tuple<int64_t, JobId, std::string>> expected;
  for (int i = 0; i < 60; ++i) {
    SubmitJob job = a_job();
    job.priority = static_cast<int>(random() % 7) - 3;
    job.project = std::string(1, static_cast<char>('a' + random() % 3));
    int64_t at_us = static_cast<int64_t>(random() % 60) * 60'000'000;
    std::vector<Pending> batch = {testing::pending(*store_, job, -1, at_us)};
    ASSERT_TRUE(store_->apply(batch).ok());
    expected.emplace_back(at_us - job.priority * 600'000'000LL, batch[0].outcome.value().id, job.project);
  }
  std::sort(expected.begin(), expected.end());
  auto order = [&](const WaitingFilter& filter) {
    std::vector<JobId> ids;
    for (const std::vector<Job> jobs = store_->waiting(filter).value(); const Job& job : jobs)
      ids.push_back(job.id);
    return ids;
  };
  auto expected_without = [&](const std::string& projects) {
    std::vector<JobId> ids;
    for (const auto& [turn, id, project] : expected) {
      if (projects.find(project) == std::string::npos) ids.push_back(id);
    }
    return ids;
  };
  EXPECT_EQ(order({.limit = 100}), expected_without(""));
  EXPECT_EQ(order({.without_projects = {"b"}, .limit = 100}), expected_without("b"));
  EXPECT_EQ(order({.without_projects = {"a", "c"}, .limit = 100}), expected_without("ac"));
  for (const char* projects : {"", "b"}) {
    WaitingFilter filter{.limit = 7};
    if (*projects != '\0') filter.without_projects = {projects};
    std::vector<JobId> in_pages;
    for (std::vector<JobId> page = order(filter); !page.empty(); page = order(filter)) {
      in_pages.insert(in_pages.end(), page.begin(), page.end());
      filter.after = page.back();
    }
    EXPECT_EQ(in_pages, expected_without(projects));
  }
}

TEST_P(StoreTest, ProjectsAreCountedWithWhatTheyHold) {
  auto submit_to = [&](const std::string& project) {
    SubmitJob job = a_job();
    job.project = project;
    return apply_one(*store_, job).value().id;
  };
  JobId runs = submit_to("b");
  submit_to("b");
  JobId failed = submit_to("a");
  ASSERT_TRUE(apply_one(*store_, StartAttempt{.job = runs, .launcher = "l", .slots = 3}).ok());
  ASSERT_TRUE(apply_one(*store_, ChangeJob{.job = failed, .to = kFailed}).ok());
  std::vector<ProjectUsage> usage = store_->projects().value();
  ASSERT_EQ(usage.size(), 1u) << "a has nothing any more";
  EXPECT_EQ(usage[0].project, "b");
  EXPECT_EQ(usage[0].num_queued, 1);
  EXPECT_EQ(usage[0].num_running, 1);
  EXPECT_EQ(usage[0].num_slots, 3);
}

TEST_P(StoreTest, SlotsAreHeldUntilTheAttemptHasEnded) {
  JobId id = apply_one(*store_, a_job()).value().id;
  EXPECT_TRUE(store_->held_slots().value().empty());
  ASSERT_TRUE(apply_one(*store_, StartAttempt{.job = id, .launcher = "l", .slots = 3}).ok());
  auto expect_held = [&] {
    std::vector<HeldSlots> held = store_->held_slots().value();
    ASSERT_EQ(held.size(), 1u);
    EXPECT_EQ(held[0].job, id);
    EXPECT_EQ(held[0].project, a_job().project);
    EXPECT_EQ(held[0].slots, 3);
    EXPECT_EQ(store_->projects().value().at(0).num_slots, 3);
  };
  expect_held();
  for (JobState state : {kRunning, kFinalizing}) {
    ASSERT_TRUE(apply_one(*store_, ChangeJob{.job = id, .to = state}).ok());
    expect_held();
  }
  AttemptChange ended{.state = AttemptState::kEnded};
  ASSERT_TRUE(apply_one(*store_, ChangeAttempt{.job = id, .attempt = 1, .change = ended}).ok());
  EXPECT_TRUE(store_->held_slots().value().empty()) << "although its results are still being written";
  EXPECT_TRUE(store_->projects().value().empty());
}

TEST_P(StoreTest, NoTwoAttemptsHoldOneSlot) {
  JobId first = apply_one(*store_, a_job()).value().id;
  JobId second = apply_one(*store_, a_job()).value().id;
  auto start = [&](JobId id, std::vector<int> numbers) {
    return apply_one(*store_, StartAttempt{.job = id, .slots = 2, .slot_numbers = std::move(numbers)});
  };
  ASSERT_TRUE(start(first, {0, 3}).ok());
  EXPECT_EQ(start(second, {3, 4}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->job(second).value().state, kQueued);
  ASSERT_TRUE(start(second, {1, 2}).ok());
  reopen();
  std::vector<HeldSlots> held = store_->held_slots().value();
  ASSERT_EQ(held.size(), 2u);
  EXPECT_EQ(held[0].slot_numbers, (std::vector<int>{0, 3}));
  EXPECT_EQ(held[1].slot_numbers, (std::vector<int>{1, 2}));
  ASSERT_TRUE(apply_one(*store_, testing::to_state(first, kRecovering)).ok());
  ASSERT_TRUE(start(first, {3, 4}).ok()) << "what an ended attempt had is free";
  EXPECT_EQ(store_->attempts(first).value().at(0).slot_numbers, (std::vector<int>{0, 3}));
}

TEST_P(StoreTest, NoMoreJobsWaitThanMay) {
  auto submit_up_to = [&](const std::string& key, int most) {
    SubmitJob job = a_job(key);
    job.max_queued = most;
    return apply_one(*store_, job).value();
  };
  JobId first = submit_up_to("k", 2).id;
  EXPECT_NE(submit_up_to("", 2).id, 0);
  EXPECT_EQ(submit_up_to("l", 2).id, 0);
  EXPECT_EQ(submit_up_to("k", 2).id, first) << "made already";
  EXPECT_EQ(store_->answer_to("p", "k").value()->job, first);
  EXPECT_FALSE(store_->answer_to("p", "l").value()) << "what was refused leaves no answer";
  EXPECT_FALSE(store_->answer_to("q", "k").value());
  EXPECT_EQ(store_->jobs({}).value().size(), 2u);
  EXPECT_NE(submit_up_to("l", 3).id, 0);
}

TEST_P(StoreTest, OverdueIsWhatWaitsAndHasExpired) {
  for (int64_t expires_us : {0, 10, 20, 30}) {
    SubmitJob job = a_job();
    job.expires_us = expires_us;
    submit(job);
  }
  std::vector<JobId> found;
  for (const std::vector<Job> jobs = store_->overdue(Overdue::kWaiting, 20, 10).value();
       const Job& job : jobs)
    found.push_back(job.id);
  EXPECT_EQ(found, (std::vector<JobId>{2, 3}));
  ASSERT_TRUE(apply_one(*store_, ChangeJob{.job = 2, .to = kExpired}).ok());
  EXPECT_EQ(store_->overdue(Overdue::kWaiting, 20, 10).value().size(), 1u);
}

TEST_P(StoreTest, WhatEndedIsFoundByItsEnd) {
  auto end_at = [&](int64_t at_us) {
    JobId id = submit();
    std::vector<Pending> batch = {
        testing::pending(*store_, ChangeJob{.job = id, .to = kCancelled}, -1, at_us)};
    ASSERT_TRUE(store_->apply(batch).ok());
    ASSERT_TRUE(batch[0].outcome.ok());
  };
  for (int64_t at_us : {30, 10, 20}) end_at(at_us);
  submit();  // it waits
  std::vector<JobId> found;
  for (const std::vector<Job> jobs = store_->overdue(Overdue::kEnded, 30, 10).value(); const Job& job : jobs)
    found.push_back(job.id);
  EXPECT_EQ(found, (std::vector<JobId>{2, 3}));
  EXPECT_EQ(store_->overdue(Overdue::kEnded, 30, 1).value().size(), 1u);
}

TEST_P(StoreTest, OnlyWhatHasEndedIsRemoved) {
  for (JobState state : all_states()) {
    JobId id = job_in(state);
    Outcome outcome = apply_one(*store_, RemoveJob{id});
    EXPECT_EQ(outcome.ok(), is_terminal(state)) << to_string(state);
    EXPECT_EQ(store_->job(id).ok(), !is_terminal(state)) << to_string(state);
    if (!outcome.ok()) {
      EXPECT_EQ(outcome.status().code(), StatusCode::kFailedPrecondition);
      continue;
    }
    EXPECT_EQ(outcome.value().version, 0);
    EXPECT_TRUE(store_->events(id, 0, 10).value().empty());
    EXPECT_TRUE(store_->attempts(id).value().empty());
  }
}

TEST_P(StoreTest, ARemovedJobLeavesItsKeyAndNotItsId) {
  JobId id = submit(a_job("k", "h1"));
  ASSERT_TRUE(apply_one(*store_, ChangeJob{.job = id, .to = kCancelled}).ok());
  int64_t old_epoch = store_->epoch();
  reopen();
  EXPECT_EQ(apply_one(*store_, RemoveJob{id}, old_epoch).status().code(), StatusCode::kAborted);
  ASSERT_TRUE(apply_one(*store_, RemoveJob{id}).ok());
  EXPECT_EQ(apply_one(*store_, RemoveJob{id}).status().code(), StatusCode::kNotFound);
  Written again = apply_one(*store_, a_job("k", "h2")).value();
  EXPECT_FALSE(again.replayed);
  EXPECT_GT(again.id, id);
}

TEST_P(StoreTest, ReadersAndAWriterTogether) {
  std::jthread writer([&] {
    for (int i = 0; i < 50; ++i) submit();
  });
  size_t seen = 0;
  while (seen < 50) {
    size_t now = store_->jobs({.limit = 100}).value().size();
    ASSERT_GE(now, seen);
    seen = now;
  }
}

INSTANTIATE_TEST_SUITE_P(Stores,
                         StoreTest,
                         ::testing::ValuesIn(testing::every_store()),
                         testing::name_of_store);

TEST(JobName, OneSpelling) {
  EXPECT_EQ(parse_job_name("job-17").value(), 17);
  for (const char* wrong :
       {"job-", "job-0", "job-07", "job-1x", "JOB-1", "1", "job--1", "job-99999999999999999999"}) {
    EXPECT_FALSE(parse_job_name(wrong).ok()) << wrong;
  }
}

TEST(StoreLocation, KnowsSharedFileSystems) {
  EXPECT_EQ(network_file_system(0x6969), "NFS");
  EXPECT_EQ(network_file_system(0xFF534D42), "CIFS");
  EXPECT_EQ(network_file_system(0xFFFFFFFFFF534D42), "CIFS");  // f_type is signed on some machines
  EXPECT_EQ(network_file_system(0xEF53), "");
}

}  // namespace
}  // namespace llm_dist::cluster
