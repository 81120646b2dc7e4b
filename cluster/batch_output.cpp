#include "cluster/batch_output.h"

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "cluster/batch_input.h"
#include "cluster/job_spec.h"
#include "src/base/format.h"
#include "src/base/log.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::ordered_json;

constexpr size_t kBytesAtOnce = 256 << 10;  // and the rest of one answer, which has up to 16 MiB

std::string dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json line_json(JobId job, int64_t number, const std::string& custom_id) {
  ordered_json out;
  out["id"] = format("batch_req_{}_{}", job, number);
  out["custom_id"] = custom_id;
  out["response"] = nullptr;
  out["error"] = nullptr;
  return out;
}

// A file that is made with its first line.
class LinesFile {
 public:
  explicit LinesFile(const FileContents& contents) : contents_(contents) {}

  Status add(const std::string& line) {
    if (!writer_) {
      ASSIGN_OR_RETURN(writer_, contents_.create());
    }
    RETURN_IF_ERROR(writer_->write(line));
    return writer_->write("\n");
  }
  // Into `to`, and what becomes of it in `known`; nothing of both where there is no line.
  Status finish(const Job& job, const char* what, BatchFiles& to, std::optional<AddFile>& known) {
    if (!writer_) return ok_status();
    RETURN_IF_ERROR(writer_->finish());
    known = AddFile{.project = job.project,
                    .purpose = FilePurpose::kBatchOutput,
                    .filename = format("{}_{}.jsonl", batch_name(job.id), what),
                    .bytes = writer_->bytes(),
                    .content = writer_->name()};
    to.contents.push_back(std::move(writer_));
    return ok_status();
  }

 private:
  const FileContents& contents_;
  std::unique_ptr<ContentWriter> writer_;
};

// A line for each item that nothing is recorded of and that can be read; `count` becomes how many.
// data_loss: fewer than are missing.
Status add_expired(const std::string& input_path,
                   const Job& job,
                   const std::unordered_set<int64_t>& recorded,
                   int64_t num_missing,
                   LinesFile& errors,
                   int64_t& count) {
  const std::string endpoint = read_job_spec(job.spec).endpoint;
  ASSIGN_OR_RETURN(BatchInput input, BatchInput::open(input_path));
  while (count < num_missing) {
    Result<std::optional<ItemPlace>> place = input.next();
    if (!place.ok()) return data_loss(place.status().message());
    if (!place.value()) {
      return data_loss(format("{} of {} items that wait are left of its input", count, num_missing));
    }
    const int64_t number = place.value()->number;
    if (recorded.contains(number)) continue;
    Result<BatchRequest> request = parse_batch_line(input.line(), endpoint);
    if (!request.ok()) continue;
    RETURN_IF_ERROR(errors.add(error_line(job.id,
                                          number,
                                          request.value().custom_id,
                                          "batch_expired",
                                          "not executed before the completion window ended")));
    ++count;
  }
  return ok_status();
}

}  // namespace

std::string answer_line(JobId job,
                        int64_t number,
                        const std::string& custom_id,
                        int status,
                        const std::string& request_id,
                        const std::string& body) {
  ordered_json parsed = ordered_json::parse(body, nullptr, false);
  ordered_json out = line_json(job, number, custom_id);
  out["response"]["status_code"] = status;
  out["response"]["request_id"] = request_id;
  out["response"]["body"] = parsed.is_discarded() ? ordered_json(body) : std::move(parsed);
  return dump(out);
}

std::string error_line(JobId job,
                       int64_t number,
                       const std::string& custom_id,
                       const std::string& code,
                       const std::string& message) {
  ordered_json out = line_json(job, number, custom_id);
  out["error"]["code"] = code;
  out["error"]["message"] = message;
  return dump(out);
}

Result<BatchFiles> write_batch_files(
    Store& store, const FileContents& contents, const Job& job, const Batch& batch, bool expired) {
  LinesFile output(contents);
  LinesFile errors(contents);
  std::unordered_set<int64_t> recorded;
  int64_t last = 0;
  while (true) {
    ASSIGN_OR_RETURN(std::vector<ItemRecord> items, store.batches().items(job.id, last, kBytesAtOnce));
    for (const ItemRecord& item : items) {
      recorded.insert(item.number);
      RETURN_IF_ERROR((item.outcome == ItemOutcome::kCompleted ? output : errors).add(item.line));
      last = item.number;
    }
    if (items.empty()) break;
  }
  BatchFiles files{.close = {.job = job.id, .expected_version = job.version}, .contents = {}};
  if (expired) {
    ASSIGN_OR_RETURN(StoredFile input, store.batches().file(batch.input_file));
    int64_t num_missing = batch.total - std::ssize(recorded);
    Status added = add_expired(
        contents.path(input.content), job, recorded, num_missing, errors, files.close.num_expired);
    // What was executed is not lost with the input.
    bool lost = added.code() == StatusCode::kDataLoss;
    if (lost) log_error("{}: {}", batch_name(job.id), added.message());
    if (!added.ok() && !lost) return added;
  }
  RETURN_IF_ERROR(output.finish(job, "output", files, files.close.output));
  RETURN_IF_ERROR(errors.finish(job, "error", files, files.close.errors));
  return files;
}

}  // namespace llm_dist::cluster
