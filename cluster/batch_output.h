// What a batch leaves: lines of its output and error file, and the files themselves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/file_contents.h"
#include "cluster/store/store.h"

namespace llm_dist::cluster {

// {"id","custom_id","response":{"status_code","request_id","body"},"error":null}; a body that is no JSON
// becomes a string.
std::string answer_line(JobId job,
                        int64_t number,
                        const std::string& custom_id,
                        int status,
                        const std::string& request_id,
                        const std::string& body);
// {"id","custom_id","response":null,"error":{"code","message"}}
std::string error_line(JobId job,
                       int64_t number,
                       const std::string& custom_id,
                       const std::string& code,
                       const std::string& message);

// Files that are durable, the command that makes them known, and who removes them unless it was carried out.
struct BatchFiles {
  CloseBatch close;
  std::vector<std::unique_ptr<ContentWriter>> contents;
};

// Writes what is recorded of a batch, in the order of its input: completed items to the output file, failed
// ones to the error file, and, where the batch has expired, a line for each item that was not executed. A
// file without lines is not made.
Result<BatchFiles> write_batch_files(
    Store& store, const FileContents& contents, const Job& job, const Batch& batch, bool expired);

}  // namespace llm_dist::cluster
