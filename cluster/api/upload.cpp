#include "cluster/api/upload.h"

#include "cluster/api/api_reply.h"
#include "cluster/store/batch.h"
#include "src/base/format.h"
#include "src/base/nearest.h"

namespace llm_dist::cluster {
namespace {

constexpr size_t kMaxFilenameBytes = 255;
constexpr size_t kMaxPurposeBytes = 64;

}  // namespace

Upload::Upload(const FileContents& contents, int64_t max_file_bytes, std::string_view content_type)
    : contents_(contents), max_file_bytes_(max_file_bytes) {
  auto parser = MultipartParser::create(
      content_type,
      [this](const FormPart& part) { return begin_part(part); },
      [this](std::string_view bytes) { return add(bytes); });
  if (check(parser.status())) parser_ = std::move(parser).value();
}

bool Upload::write(std::string_view piece) { return !refusal_ && check(parser_->feed(piece)); }

bool Upload::finish() {
  if (refusal_ || !check(parser_->finish())) return false;
  Status status = ok_status();
  if (!has_purpose_ || purpose_ != to_string(FilePurpose::kBatch)) {
    status = refuse(400, "'purpose' must be 'batch'", "purpose");
  } else if (!content_) {
    status = refuse(400, "'file' is missing", "file");
  } else {
    status = content_->finish();
  }
  return check(status);
}

Status Upload::begin_part(const FormPart& part) {
  constexpr std::string_view kFields[] = {"file", "purpose", "expires_after"};
  part_ = part.name;
  if (part_.starts_with("expires_after")) {
    return refuse(400, "'expires_after' is known, but not served: files stay until they are deleted", part_);
  }
  if (part_ != "file" && part_ != "purpose") {
    return refuse(
        400, format("unknown field '{}': did you mean '{}'?", part_, nearest_word(part_, kFields)), part_);
  }
  if (part_ == "file" ? content_ != nullptr : has_purpose_) {
    return refuse(400, format("'{}' is given twice", part_), part_);
  }
  if (part_ == "file") return begin_file(part);
  has_purpose_ = true;
  return ok_status();
}

Status Upload::begin_file(const FormPart& part) {
  filename_ = part.filename.value_or("");
  if (filename_.empty() || filename_.size() > kMaxFilenameBytes) {
    return refuse(400, format("'file' needs a filename of 1 to {} bytes", kMaxFilenameBytes), part_);
  }
  ASSIGN_OR_RETURN(content_, contents_.create());
  return ok_status();
}

Status Upload::add(std::string_view bytes) {
  if (part_ == "purpose") {
    purpose_ += bytes.substr(0, kMaxPurposeBytes - std::min(kMaxPurposeBytes, purpose_.size()));
    return ok_status();
  }
  if (content_->bytes() + static_cast<int64_t>(bytes.size()) > max_file_bytes_) {
    return refuse(413, format("a file may have {} bytes", max_file_bytes_), part_);
  }
  return content_->write(bytes);
}

Status Upload::refuse(int status, std::string message, std::string param) {
  refusal_ = error_reply({.status = status, .message = message, .param = std::move(param)});
  return invalid_argument(std::move(message));
}

// What else can fail, the form's shape and the disk, has its answer by its code.
bool Upload::check(const Status& status) {
  if (!status.ok() && !refusal_) refusal_ = error_reply(status);
  return status.ok();
}

}  // namespace llm_dist::cluster
