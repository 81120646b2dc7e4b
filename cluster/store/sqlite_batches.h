// Files and batches in SQLite: their queries and their commands. Internal to this folder.
#pragma once

#include <string>
#include <vector>

#include "cluster/store/batch_store.h"
#include "cluster/store/command.h"
#include "cluster/store/sqlite.h"

namespace llm_dist::cluster {

Result<StoredFile> query_file(Database& database, FileId id);
Result<std::vector<StoredFile>> query_files(Database& database, const FileFilter& filter);
Result<std::vector<std::string>> query_contents(Database& database);
Result<Batch> query_batch(Database& database, JobId job);
Result<std::vector<Batch>> query_open_batches(Database& database);
Result<std::vector<ItemRecord>> query_items(Database& database,
                                            JobId job,
                                            int64_t after,
                                            size_t enough_bytes);
Result<std::vector<ItemRecord>> query_item_marks(Database& database, JobId job);

Result<int64_t> query_progress_attempt(Database& database, JobId job);

// Says that the job just inserted takes items of the batch.
Status insert_replica(Database& database, const Command& command, JobId job, JobId batch);
// Beside the job that was just inserted.
Status insert_batch(Database& database, const Command& command, JobId job, const NewBatch& batch);
Outcome carry_out(Database& database, const Command& command, const AddFile& add);
Outcome carry_out(Database& database, const Command& command, const DeleteFile& remove);
// What the job allows is for the caller to check. `attempt`: the batch's own, whoever speaks.
Status record_item(Database& database, const Command& command, const RecordItem& record, int64_t attempt);
Status count_deaths(Database& database, const Command& command, const CountDeaths& deaths, int64_t attempt);
// After the job has ended.
Status close_batch(Database& database, const Command& command, const CloseBatch& close);

}  // namespace llm_dist::cluster
