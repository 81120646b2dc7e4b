#include "cluster/store/batch.h"

#include <array>
#include <charconv>

#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

constexpr std::array<std::string_view, 2> kPurposes = {"batch", "batch_output"};
constexpr std::array<std::string_view, 3> kOutcomes = {"", "completed", "failed"};

// The one spelling of PREFIX-NUMBER: "file-07" names nothing.
Result<int64_t> parse_name(std::string_view prefix, std::string_view name) {
  int64_t id = 0;
  if (name.starts_with(prefix)) {
    auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), id);
    bool whole = error == std::errc() && end == name.data() + name.size();
    if (whole && id > 0 && format("{}{}", prefix, id) == name) return id;
  }
  return not_found(format("no such {}: {}", prefix.substr(0, prefix.size() - 1), name));
}

}  // namespace

std::string_view to_string(FilePurpose purpose) { return kPurposes[static_cast<size_t>(purpose)]; }
Result<FilePurpose> parse_file_purpose(std::string_view name) {
  for (FilePurpose purpose : {FilePurpose::kBatch, FilePurpose::kBatchOutput}) {
    if (to_string(purpose) == name) return purpose;
  }
  return invalid_argument(format("'{}' is no purpose of a file", name));
}
std::string_view to_string(ItemOutcome outcome) { return kOutcomes[static_cast<size_t>(outcome)]; }

std::string file_name(FileId id) { return "file-" + std::to_string(id); }
Result<FileId> parse_file_name(std::string_view name) { return parse_name("file-", name); }
std::string batch_name(JobId job) { return "batch-" + std::to_string(job); }
Result<JobId> parse_batch_name(std::string_view name) { return parse_name("batch-", name); }

}  // namespace llm_dist::cluster
