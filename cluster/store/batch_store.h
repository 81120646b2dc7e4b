// Reading files and batches: the part of a store that only they need. What changes them are commands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/store/batch.h"

namespace llm_dist::cluster {

struct FileFilter {
  std::optional<std::string> project{};
  std::optional<FilePurpose> purpose{};
  FileId after = 0;  // the last one of the page before; 0: from the beginning
  bool newest_first = true;
  int limit = 20;
};

// Thread-safe. Reads see only what is durable.
class BatchStore {
 public:
  virtual ~BatchStore() = default;

  virtual Result<StoredFile> file(FileId id) = 0;
  virtual Result<std::vector<StoredFile>> files(const FileFilter& filter) = 0;
  // The contents that files name.
  virtual Result<std::vector<std::string>> contents() = 0;

  // not_found: no such job, or it is no batch.
  virtual Result<Batch> batch(JobId job) = 0;
  // Those whose files are still to be written, oldest first.
  virtual Result<std::vector<Batch>> open_batches() = 0;
  // The jobs that take the batch's items besides its own, oldest first.
  virtual Result<std::vector<Job>> replicas(JobId batch) = 0;
  // The last attempt of a batch's job, or of a replica of one, in which an item was recorded; 0: none.
  virtual Result<int64_t> progress_attempt(JobId job) = 0;
  // Records after number `after`, in the order of their numbers, until their lines have so many bytes
  // together. None: there are no more.
  virtual Result<std::vector<ItemRecord>> items(JobId job, int64_t after, size_t enough_bytes) = 0;
  // All of them, without their lines.
  virtual Result<std::vector<ItemRecord>> item_marks(JobId job) = 0;
};

}  // namespace llm_dist::cluster
