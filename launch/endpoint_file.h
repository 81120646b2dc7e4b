// The file that tells whoever started a server where it listens (--endpoint-file).
#pragma once

#include <mutex>
#include <string>

#include "comm/host/fd.h"
#include "launch/shutdown_signal.h"
#include "src/base/status.h"

namespace llm_dist::launch {

// There while the server listens: an address that nobody listens at any more would be waited for in vain.
class EndpointFile {
 public:
  // Removes what a server that was killed has left; one that lives keeps its own. An empty path: no file.
  // Where `signal` ends the process at once, remove() comes before.
  EndpointFile(std::string path, ShutdownSignal& signal);
  ~EndpointFile();  // remove()
  EndpointFile(const EndpointFile&) = delete;
  EndpointFile& operator=(const EndpointFile&) = delete;

  // Whole or not at all; failed_precondition where the file holds something else than an address. `uds_path`:
  // the Unix socket that the server listens at, if it is one.
  Status write(const std::string& url, const std::string& uds_path = "");
  // Removes the file and the socket, unless they are another server's since; after it nothing is written. Any
  // thread: for who ends the process without destructors.
  void remove();

 private:
  ShutdownSignal& signal_;
  const std::string path_;
  std::mutex mutex_;
  bool removed_ = false;
  std::string text_;
  comm::Fd held_;  // locked while this server lives
  std::string uds_path_;
  std::string socket_;  // as identity() gives it
};

}  // namespace llm_dist::launch
