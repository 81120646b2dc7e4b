// What the coordinator keeps of files and batches. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cluster/store/job.h"

namespace llm_dist::cluster {

enum class FilePurpose : uint8_t { kBatch, kBatchOutput };
std::string_view to_string(FilePurpose purpose);  // "batch_output"
Result<FilePurpose> parse_file_purpose(std::string_view name);

// "file-17" and back; ids count upwards and are never used twice.
using FileId = int64_t;
std::string file_name(FileId id);
Result<FileId> parse_file_name(std::string_view name);

// A file that a client uploaded or a batch left. It never changes.
struct StoredFile {
  FileId id = 0;
  std::string project{};
  FilePurpose purpose = FilePurpose::kBatch;
  std::string filename{};  // as the client called it; never a path here
  int64_t bytes = 0;
  std::string content{};  // its name in the folder of contents
  int64_t created_us = 0;
};

// A batch is a job of kind batch_inference; this is what it has besides. "batch-17" is of job-17.
std::string batch_name(JobId job);
Result<JobId> parse_batch_name(std::string_view name);

struct Batch {
  JobId job = 0;
  FileId input_file = 0;
  std::string completion_window{};
  std::string metadata{};  // JSON: an object of strings, or null
  int64_t total = 0;       // items
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t progress_attempt = 0;  // the last attempt in which an item was recorded
  bool closed = false;           // ended, and its files written
  FileId output_file = 0;        // 0: none
  FileId error_file = 0;
  int64_t closed_us = 0;
};

enum class ItemOutcome : uint8_t { kOpen, kCompleted, kFailed };
std::string_view to_string(ItemOutcome outcome);  // "", "completed", "failed"

// What is written of one item; one that was never tried, or not to an end, and saw no engine die, has no row.
struct ItemRecord {
  int64_t number = 0;  // its line in the input file, from 1
  ItemOutcome outcome = ItemOutcome::kOpen;
  int deaths = 0;      // of engines that had it in flight
  std::string line{};  // of the output or error file
};

}  // namespace llm_dist::cluster
