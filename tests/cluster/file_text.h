// A content as text: what the tests compare is small.
#pragma once

#include <string>

#include "cluster/file_contents.h"

namespace llm_dist::cluster::testing {

inline Result<std::string> text_of(const FileContents& contents, const std::string& name) {
  ASSIGN_OR_RETURN(std::shared_ptr<http::BodySource> source, contents.open(name));
  std::string text(source->bytes(), '\0');
  RETURN_IF_ERROR(source->read(text));
  return text;
}

}  // namespace llm_dist::cluster::testing
