// What every store promises of files and batches, whichever database stands below it.
#include <gtest/gtest.h>

#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster {
namespace {

using testing::apply_one;
using testing::to_state;
using enum JobState;

class BatchStoreTest : public testing::EveryStore {
 protected:
  BatchStore& batches() { return store_->batches(); }
  FileId add_file(const std::string& content, FilePurpose purpose = FilePurpose::kBatch) {
    return apply_one(*store_, AddFile{"p", purpose, "in.jsonl", 10, content}).value().id;
  }
  Outcome submit(FileId input, int64_t total) {
    return apply_one(*store_,
                     SubmitJob{.project = "p",
                               .kind = JobKind::kBatchInference,
                               .spec = R"({"model":"m"})",
                               .batch = NewBatch{input, "24h", R"({"k":"v"})", total}});
  }
  // A batch whose first attempt runs.
  JobId running(int64_t total = 3) {
    JobId id = submit(add_file("content-" + std::to_string(++num_files_)), total).value().id;
    start(id);
    return id;
  }
  void start(JobId id) {
    ASSERT_TRUE(apply_one(*store_, StartAttempt{.job = id, .launcher = "l", .slots = 1}).ok());
    ASSERT_TRUE(apply_one(*store_, to_state(id, kRunning)).ok());
  }
  StatusCode record(
      JobId id, int64_t number, int64_t attempt = 1, bool completed = true, int64_t epoch = -1) {
    std::string custom_id = "id-" + std::to_string(number);
    return apply_one(
               *store_, RecordItem{id, attempt, number, custom_id, completed, "line " + custom_id}, epoch)
        .status()
        .code();
  }
  StatusCode count_death(JobId id, int64_t number, int64_t attempt) {
    std::string custom_id = "id-" + std::to_string(number);
    return apply_one(*store_, CountDeaths{id, attempt, 2, {{number, custom_id, "quarantined"}}})
        .status()
        .code();
  }
  Batch batch(JobId id) { return batches().batch(id).value(); }

  int num_files_ = 0;
};

TEST_P(BatchStoreTest, FilesStayAsTheyWere) {
  FileId one = add_file("c1");
  FileId two = add_file("c2", FilePurpose::kBatchOutput);
  reopen();
  StoredFile back = batches().file(one).value();
  EXPECT_EQ(back.project, "p");
  EXPECT_EQ(back.filename, "in.jsonl");
  EXPECT_EQ(back.bytes, 10);
  EXPECT_EQ(back.content, "c1");
  EXPECT_EQ(back.purpose, FilePurpose::kBatch);
  auto ids = [&](const FileFilter& filter) {
    std::vector<FileId> found;
    const std::vector<StoredFile> files = batches().files(filter).value();
    for (const StoredFile& file : files) found.push_back(file.id);
    return found;
  };
  EXPECT_EQ(ids({}), (std::vector<FileId>{two, one}));
  EXPECT_EQ(ids({.newest_first = false}), (std::vector<FileId>{one, two}));
  EXPECT_EQ(ids({.after = two}), (std::vector<FileId>{one}));
  EXPECT_EQ(ids({.after = one, .newest_first = false}), (std::vector<FileId>{two}));
  EXPECT_EQ(ids({.purpose = FilePurpose::kBatchOutput}), (std::vector<FileId>{two}));
  EXPECT_EQ(ids({.project = "q"}), (std::vector<FileId>{}));
  EXPECT_EQ(ids({.limit = 1}), (std::vector<FileId>{two}));
  EXPECT_EQ(batches().contents().value().size(), 2u);
  ASSERT_TRUE(apply_one(*store_, DeleteFile{two}).ok());
  EXPECT_EQ(apply_one(*store_, DeleteFile{two}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(batches().file(two).status().code(), StatusCode::kNotFound);
  EXPECT_GT(add_file("c3"), two) << "ids are not used again";
}

TEST_P(BatchStoreTest, ABatchBeginsWithItsJobAndItsFile) {
  EXPECT_EQ(submit(99, 1).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(submit(add_file("out", FilePurpose::kBatchOutput), 1).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->jobs({}).value().size(), 0u) << "no job without its batch";
  FileId input = add_file("in");
  JobId id = submit(input, 2).value().id;
  reopen();
  EXPECT_EQ(batch(id).input_file, input);
  EXPECT_EQ(batch(id).completion_window, "24h");
  EXPECT_EQ(batch(id).metadata, R"({"k":"v"})");
  EXPECT_EQ(batch(id).total, 2);
  EXPECT_EQ(batches().open_batches().value().size(), 1u);
  EXPECT_EQ(apply_one(*store_, DeleteFile{input}).status().code(), StatusCode::kFailedPrecondition);
}

TEST_P(BatchStoreTest, AnItemIsRecordedOnce) {
  JobId id = running();
  EXPECT_EQ(record(id, 1), StatusCode::kOk);
  EXPECT_EQ(record(id, 1), StatusCode::kFailedPrecondition);
  EXPECT_EQ(record(id, 1, 1, false), StatusCode::kFailedPrecondition);
  EXPECT_EQ(record(id, 2, 1, false), StatusCode::kOk);
  EXPECT_EQ(apply_one(*store_, RecordItem{id, 1, 3, "id-1", true, "again"}).status().code(),
            StatusCode::kFailedPrecondition)
      << "the same custom_id on another line";
  reopen();
  EXPECT_EQ(batch(id).completed, 1);
  EXPECT_EQ(batch(id).failed, 1);
  auto items = batches().items(id, 0, SIZE_MAX).value();
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0].line, "line id-1");
  EXPECT_EQ(items[0].outcome, ItemOutcome::kCompleted);
  EXPECT_EQ(items[1].outcome, ItemOutcome::kFailed);
  EXPECT_EQ(batches().items(id, 1, SIZE_MAX).value().size(), 1u);
  // "line id-1" is nine bytes: a reader has no more in hand than it asked for, and the rest of one line.
  EXPECT_EQ(batches().items(id, 0, 9).value().size(), 1u);
  EXPECT_EQ(batches().items(id, 0, 10).value().size(), 2u);
}

TEST_P(BatchStoreTest, WhatSpeaksForAnotherAttemptIsRefused) {
  JobId id = running();
  ASSERT_TRUE(apply_one(*store_, to_state(id, kRecovering)).ok());
  start(id);
  EXPECT_EQ(record(id, 1, 1), StatusCode::kFailedPrecondition);
  EXPECT_EQ(record(id, 1, 3), StatusCode::kFailedPrecondition);
  EXPECT_EQ(record(id, 1, 2), StatusCode::kOk);
  EXPECT_EQ(batch(id).completed, 1);
  EXPECT_EQ(batch(id).progress_attempt, 2);
}

TEST_P(BatchStoreTest, AnOlderCoordinatorIsFenced) {
  JobId id = running();
  FileId file = add_file("spare");
  int64_t old_epoch = store_->epoch();
  reopen();
  EXPECT_EQ(record(id, 1, 1, true, old_epoch), StatusCode::kAborted);
  for (const CommandBody& body : std::vector<CommandBody>{
           AddFile{"p", FilePurpose::kBatch, "f", 1, "c"},
           DeleteFile{file},
           CountDeaths{id, 1, 2, {{1, "id-1", "q"}}},
           CloseBatch{.job = id, .to = kFailed},
       }) {
    EXPECT_EQ(apply_one(*store_, body, old_epoch).status().code(), StatusCode::kAborted) << body.index();
  }
  EXPECT_EQ(batches().item_marks(id).value().size(), 0u);
  EXPECT_TRUE(batches().file(file).ok());
}

TEST_P(BatchStoreTest, TwoDeathsQuarantineAnItem) {
  JobId id = running();
  EXPECT_EQ(record(id, 3), StatusCode::kOk);
  EXPECT_EQ(count_death(id, 1, 1), StatusCode::kOk);
  EXPECT_EQ(count_death(id, 1, 1), StatusCode::kOk) << "told twice, counted once";
  EXPECT_EQ(count_death(id, 3, 1), StatusCode::kOk) << "it was recorded before";
  EXPECT_EQ(batch(id).failed, 0);
  EXPECT_EQ(batches().item_marks(id).value().at(0).deaths + batches().item_marks(id).value().at(1).deaths, 1);
  EXPECT_EQ(batches().items(id, 0, SIZE_MAX).value().size(), 1u) << "a death alone is no record";
  ASSERT_TRUE(apply_one(*store_, to_state(id, kRecovering)).ok());
  start(id);
  EXPECT_EQ(count_death(id, 2, 2), StatusCode::kOk);
  EXPECT_EQ(count_death(id, 1, 2), StatusCode::kOk);
  EXPECT_EQ(batch(id).failed, 1);
  EXPECT_EQ(batch(id).progress_attempt, 2);
  EXPECT_EQ(record(id, 1, 2), StatusCode::kFailedPrecondition) << "it was given up";
  EXPECT_EQ(record(id, 2, 2), StatusCode::kOk) << "one death is none";
  EXPECT_EQ(batches().items(id, 0, 1).value().at(0).line, "quarantined");
}

class ReplicasStoreTest : public BatchStoreTest {
 protected:
  // A batch with one replica more, both in their first attempt.
  void SetUp() override {
    BatchStoreTest::SetUp();
    SubmitJob submit{.project = "p",
                     .kind = JobKind::kBatchInference,
                     .spec = R"({"model":"m","replicas":2})",
                     .priority = 3,
                     .expires_us = 99,
                     .batch = NewBatch{add_file("in"), "24h", "null", 5, 2, R"({"model":"m"})"}};
    batch_ = apply_one(*store_, submit).value().id;
    replica_ = batches().replicas(batch_).value().at(0).id;
    start(batch_);
    start(replica_);
  }
  void again(JobId id) {
    ASSERT_TRUE(apply_one(*store_, to_state(id, kRecovering)).ok());
    start(id);
  }
  StatusCode record_from(JobId replica, int64_t attempt, int64_t number) {
    RecordItem record{batch_, attempt, number, std::to_string(number), true, "line", replica};
    return apply_one(*store_, record).status().code();
  }
  StatusCode death_on(JobId replica, int64_t attempt, int64_t number) {
    CountDeaths deaths{batch_, attempt, 2, {{number, std::to_string(number), "quarantined"}}, replica};
    return apply_one(*store_, deaths).status().code();
  }

  JobId batch_ = 0;
  JobId replica_ = 0;
};

TEST_P(ReplicasStoreTest, AReplicaIsAJobThatTheBatchIsMadeWith) {
  reopen();
  Job job = store_->job(replica_).value();
  EXPECT_EQ(job.replica_of, batch_);
  EXPECT_EQ(job.kind, JobKind::kServe);
  EXPECT_EQ(job.spec, R"({"model":"m"})");
  EXPECT_EQ(job.project, "p");
  EXPECT_EQ(job.priority, 3);
  EXPECT_EQ(job.expires_us, 99);
  EXPECT_EQ(store_->job(batch_).value().replica_of, 0);
  EXPECT_EQ(batches().replicas(replica_).value().size(), 0u);
  EXPECT_EQ(store_->events(replica_, 0, 1).value().at(0).to, kQueued);
}

TEST_P(ReplicasStoreTest, WhatSpeaksForAnotherAttemptOfItIsRefused) {
  EXPECT_EQ(record_from(replica_, 1, 1), StatusCode::kOk);
  EXPECT_EQ(record_from(replica_, 1, 1), StatusCode::kFailedPrecondition);
  EXPECT_EQ(record_from(0, 1, 1), StatusCode::kFailedPrecondition) << "once, whoever did it";
  again(replica_);
  EXPECT_EQ(record_from(replica_, 1, 2), StatusCode::kFailedPrecondition);
  EXPECT_EQ(record_from(replica_, 2, 2), StatusCode::kOk);
  EXPECT_EQ(record_from(0, 2, 3), StatusCode::kFailedPrecondition) << "the batch's own is at its first";
  EXPECT_EQ(record_from(0, 1, 3), StatusCode::kOk);
  EXPECT_EQ(batch(batch_).completed, 3);
  EXPECT_EQ(batches().progress_attempt(replica_).value(), 2);
  EXPECT_EQ(batches().progress_attempt(batch_).value(), 1);
  ASSERT_TRUE(apply_one(*store_, to_state(batch_, kFinalizing)).ok());
  EXPECT_EQ(record_from(replica_, 2, 4), StatusCode::kFailedPrecondition);
}

TEST_P(ReplicasStoreTest, AnotherJobHasNoSay) {
  JobId other =
      apply_one(*store_, SubmitJob{.project = "p", .kind = JobKind::kServe, .spec = "{}"}).value().id;
  start(other);
  EXPECT_EQ(record_from(other, 1, 1), StatusCode::kFailedPrecondition);
  EXPECT_EQ(death_on(other, 1, 1), StatusCode::kFailedPrecondition);
  EXPECT_EQ(batches().item_marks(batch_).value().size(), 0u);
}

// Attempts are numbered by job: the first of one and the first of another are two deaths.
TEST_P(ReplicasStoreTest, DeathsOfDifferentReplicasAreDifferentDeaths) {
  EXPECT_EQ(death_on(replica_, 1, 1), StatusCode::kOk);
  EXPECT_EQ(death_on(replica_, 1, 1), StatusCode::kOk) << "told twice, counted once";
  EXPECT_EQ(batch(batch_).failed, 0);
  EXPECT_EQ(batches().progress_attempt(replica_).value(), 0);
  EXPECT_EQ(death_on(0, 1, 1), StatusCode::kOk);
  EXPECT_EQ(batch(batch_).failed, 1);
  EXPECT_EQ(death_on(0, 1, 2), StatusCode::kOk);
  again(replica_);
  EXPECT_EQ(death_on(replica_, 2, 2), StatusCode::kOk);
  EXPECT_EQ(batch(batch_).failed, 2);
  EXPECT_EQ(batches().progress_attempt(replica_).value(), 2) << "an item was settled";
}

INSTANTIATE_TEST_SUITE_P(Stores,
                         ReplicasStoreTest,
                         ::testing::ValuesIn(testing::every_store()),
                         testing::name_of_store);

TEST_P(BatchStoreTest, ClosingIsOneChange) {
  JobId id = running(2);
  FileId input = batch(id).input_file;
  EXPECT_EQ(record(id, 1), StatusCode::kOk);
  CloseBatch close{.job = id,
                   .to = kSucceeded,
                   .reason = "completed",
                   .output = AddFile{"p", FilePurpose::kBatchOutput, "o", 5, "out"},
                   .errors = AddFile{"p", FilePurpose::kBatchOutput, "e", 6, "err"},
                   .num_expired = 1};
  EXPECT_EQ(apply_one(*store_, close).status().code(), StatusCode::kFailedPrecondition) << "it runs";
  ASSERT_TRUE(apply_one(*store_, to_state(id, kFinalizing)).ok());
  EXPECT_EQ(record(id, 2), StatusCode::kFailedPrecondition) << "the results are being written";
  EXPECT_EQ(apply_one(*store_, close).status().code(), StatusCode::kFailedPrecondition)
      << "its attempt lives";
  EXPECT_EQ(batches().contents().value().size(), 1u) << "nothing of it stays";
  ASSERT_TRUE(apply_one(*store_, ChangeAttempt{id, 1, {.state = AttemptState::kEnded}}).ok());
  ASSERT_TRUE(apply_one(*store_, close).ok());
  EXPECT_EQ(store_->job(id).value().state, kSucceeded);
  EXPECT_TRUE(batch(id).closed);
  EXPECT_EQ(batch(id).failed, 1);
  EXPECT_EQ(batches().file(batch(id).output_file).value().content, "out");
  EXPECT_EQ(batches().file(batch(id).error_file).value().content, "err");
  EXPECT_EQ(batches().open_batches().value().size(), 0u);
  close.to.reset();
  EXPECT_EQ(apply_one(*store_, close).status().code(), StatusCode::kFailedPrecondition) << "closed already";
  EXPECT_TRUE(apply_one(*store_, DeleteFile{input}).ok());
}

TEST_P(BatchStoreTest, WhatEndedElsewhereIsClosedAfterwards) {
  JobId id = submit(add_file("in"), 1).value().id;
  CloseBatch close{.job = id};
  EXPECT_EQ(apply_one(*store_, close).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(apply_one(*store_, ChangeJob{.job = id, .to = kCancelled}).ok());
  EXPECT_EQ(record(id, 1, 0), StatusCode::kFailedPrecondition);
  EXPECT_EQ(batches().open_batches().value().size(), 1u);
  ASSERT_TRUE(apply_one(*store_, close).ok());
  EXPECT_TRUE(batch(id).closed);
  EXPECT_EQ(batch(id).output_file, 0);
}

TEST_P(BatchStoreTest, AClosedBatchIsRemovedPieceByPiece) {
  constexpr int64_t kItems = 1500;
  JobId id = running(kItems);
  std::vector<Pending> records;
  for (int64_t number = 1; number <= kItems; ++number) {
    records.push_back(
        testing::pending(*store_, RecordItem{id, 1, number, std::to_string(number), true, "line"}));
  }
  ASSERT_TRUE(store_->apply(records).ok());
  ASSERT_EQ(batch(id).completed, kItems);
  ASSERT_TRUE(apply_one(*store_, to_state(id, kFailed)).ok());
  EXPECT_EQ(apply_one(*store_, RemoveJob{id}).status().code(), StatusCode::kFailedPrecondition)
      << "its files are still to be written";
  EXPECT_TRUE(store_->overdue(Overdue::kEnded, INT64_MAX, 10).value().empty());
  ASSERT_TRUE(
      apply_one(*store_,
                CloseBatch{.job = id, .output = AddFile{"p", FilePurpose::kBatchOutput, "o", 5, "out"}})
          .ok());
  EXPECT_EQ(store_->overdue(Overdue::kEnded, INT64_MAX, 10).value().size(), 1u);
  EXPECT_NE(apply_one(*store_, RemoveJob{id}).value().version, 0);
  EXPECT_TRUE(store_->job(id).ok());
  EXPECT_EQ(batches().item_marks(id).value().size(), 500u);
  EXPECT_EQ(apply_one(*store_, RemoveJob{id}).value().version, 0);
  EXPECT_EQ(batches().batch(id).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(batches().item_marks(id).value().empty());
  EXPECT_EQ(batches().files({}).value().size(), 2u) << "files stay";
}

INSTANTIATE_TEST_SUITE_P(Stores,
                         BatchStoreTest,
                         ::testing::ValuesIn(testing::every_store()),
                         testing::name_of_store);

}  // namespace
}  // namespace llm_dist::cluster
