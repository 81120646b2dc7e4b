// What changes files and batches; see command.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/store/batch.h"

namespace llm_dist::cluster {

// A file whose content is durable already. The outcome's id is the file's.
struct AddFile {
  std::string project;
  FilePurpose purpose = FilePurpose::kBatch;
  std::string filename;
  int64_t bytes = 0;
  std::string content;
};

// failed_precondition: a batch that has not ended reads it.
struct DeleteFile {
  FileId file = 0;
};

// The batch of a job that is submitted; not_found: no such input file.
struct NewBatch {
  FileId input_file = 0;
  std::string completion_window;
  std::string metadata;  // JSON
  int64_t total = 0;
  int num_replicas = 1;        // that take its items: the job itself, and a `serve` job for each more
  std::string replica_spec{};  // of those
};

// What became of an item, once and for all. failed_precondition: it is recorded already, the attempt is not
// the current one of the replica that speaks, which is none of this batch's, or the job is being finalized or
// has ended.
struct RecordItem {
  JobId job = 0;
  int64_t attempt = 0;
  int64_t number = 0;
  std::string custom_id;
  bool completed = false;  // else failed
  std::string line;        // of the output or error file
  JobId replica = 0;       // the job whose attempt it is, where that is not the batch's own
};

// An engine died with these items in flight. One attempt counts once for an item, however often it is told.
struct CountDeaths {
  struct Item {
    int64_t number = 0;
    std::string custom_id;
    std::string line;  // recorded, as failed, at the last death that is allowed
  };
  JobId job = 0;
  int64_t attempt = 0;
  int max_deaths = 2;
  std::vector<Item> items;
  JobId replica = 0;  // the job whose attempt it is, where that is not the batch's own
};

// The batch's files are written: they, the batch and, where `to` is given, the job change together.
// failed_precondition: closed already, or the job would not have ended.
struct CloseBatch {
  JobId job = 0;
  int64_t expected_version = 0;
  std::optional<JobState> to{};
  std::string reason{};
  std::string message{};
  std::optional<AddFile> output{};
  std::optional<AddFile> errors{};
  int64_t num_expired = 0;  // items that only the error file knows: they count as failed
};

}  // namespace llm_dist::cluster
