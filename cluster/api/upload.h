// The form of POST /v1/files as it comes: its file goes to the disk, the rest is looked at.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/api/multipart.h"
#include "cluster/file_contents.h"
#include "src/http/api_error.h"
#include "src/http/message.h"

namespace llm_dist::cluster {

class Upload : public http::BodySink {
 public:
  // A content type that cannot be read makes a refusal, too.
  Upload(const FileContents& contents, int64_t max_file_bytes, std::string_view content_type);

  bool write(std::string_view piece) override;
  // Why the form is refused, by what has come so far.
  const std::optional<http::Response>& refusal() const { return refusal_; }

  // The whole form has come: the content is durable afterwards. Else see refusal().
  bool finish();
  const std::string& filename() const { return filename_; }
  // After finish(): who removes the content unless it is kept.
  std::unique_ptr<ContentWriter> take_content() { return std::move(content_); }

 private:
  Status begin_part(const FormPart& part);
  Status begin_file(const FormPart& part);
  Status add(std::string_view bytes);
  // Remembers the refusal; returns what ends the reading.
  Status refuse(int status, std::string message, std::string param);
  bool check(const Status& status);

  const FileContents& contents_;
  const int64_t max_file_bytes_;
  std::optional<MultipartParser> parser_;
  std::string part_;     // the name of the one that comes
  std::string purpose_;  // what came of it, as far as it may be right
  std::string filename_;
  std::unique_ptr<ContentWriter> content_;
  bool has_purpose_ = false;
  std::optional<http::Response> refusal_;
};

}  // namespace llm_dist::cluster
