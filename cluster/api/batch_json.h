// Files and batches as OpenAI's API shows them.
#pragma once

#include <string>
#include <vector>

#include "cluster/store/batch.h"

namespace llm_dist::cluster {

std::string render_file(const StoredFile& file);
std::string render_file_list(const std::vector<StoredFile>& files, bool has_more);
std::string render_file_deleted(FileId id);

struct BatchView {
  Job job{};
  Batch batch{};
  std::vector<Event> events{};  // all of them
};
std::string render_batch(const BatchView& view);
std::string render_batch_list(const std::vector<BatchView>& views, bool has_more);

// OpenAI's status of a batch: batch_status() of its job, but for two things. It has not ended before its
// files are written, and what was in progress once does not go back to validating.
std::string_view status_of(const BatchView& view);

}  // namespace llm_dist::cluster
