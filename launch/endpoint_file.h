// The file that tells whoever started a server where it listens (--endpoint-file).
#pragma once

#include <string>

#include "src/base/status.h"

namespace llm_dist::launch {

// There while the server listens: an address that nobody listens at any more would be waited for in vain.
class EndpointFile {
 public:
  // Removes what a server that was killed has left. An empty path: no file.
  explicit EndpointFile(std::string path);
  // Removes the file, unless another server has written it since.
  ~EndpointFile();
  EndpointFile(const EndpointFile&) = delete;
  EndpointFile& operator=(const EndpointFile&) = delete;

  // Whole or not at all.
  Status write(const std::string& url);

 private:
  std::string path_;
  std::string text_;
};

}  // namespace llm_dist::launch
