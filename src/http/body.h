// Bodies that nobody holds whole: read or taken piece by piece, on threads of the server that may wait for a
// disk.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "src/base/status.h"

namespace llm_dist::http {

// A response's body, whose size is known before it is read.
class BodySource {
 public:
  virtual ~BodySource() = default;
  virtual uint64_t bytes() const = 0;
  // The next piece, all of it. An error cuts the connection: what is short must not look whole.
  virtual Status read(std::span<char> piece) = 0;
};

// What takes a request's body as it comes. Dropped without a request: the client is gone, or was refused.
class BodySink {
 public:
  virtual ~BodySink() = default;
  // False: it wants no more. The request is handed to its handler at once; its connection ends with the
  // answer.
  virtual bool write(std::string_view piece) = 0;
};

}  // namespace llm_dist::http
