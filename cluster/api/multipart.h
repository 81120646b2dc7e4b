// multipart/form-data (RFC 7578), as it comes: however a body is cut into pieces, it has the same parts.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace llm_dist::cluster {

struct FormPart {
  std::string name{};
  std::optional<std::string> filename{};
};

class MultipartParser {
 public:
  // A part begins; then its content, in pieces, none where it is empty. An error ends the reading.
  using OnPart = std::function<Status(FormPart)>;
  using OnContent = std::function<Status(std::string_view)>;
  // invalid_argument: another content type, no boundary.
  static Result<MultipartParser> create(std::string_view content_type, OnPart on_part, OnContent on_content);

  // invalid_argument: a part without a name, a header that is too long, too many parts; or what the callbacks
  // say. Nothing may be fed after an error. Memory: a header, or a boundary, and the bytes fed.
  Status feed(std::string_view bytes);
  // invalid_argument: the body ended before its last boundary.
  Status finish() const;

 private:
  enum class Place { kPreamble, kBoundary, kHeader, kContent, kEpilogue };

  MultipartParser(std::string delimiter, OnPart on_part, OnContent on_content);
  // False: more has to come first.
  Result<bool> step();
  Result<bool> read_content();
  Result<bool> read_boundary();
  Result<bool> read_header();
  Status hand_over(size_t count);

  std::string delimiter_;  // with the line break in front of it
  OnPart on_part_;
  OnContent on_content_;
  Place place_ = Place::kPreamble;
  std::string pending_;
  size_t used_ = 0;  // of it
  size_t num_parts_ = 0;
};

}  // namespace llm_dist::cluster
