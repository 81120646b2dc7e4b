// OpenAI's /v1/files: what batches read and what they leave.
#pragma once

#include "cluster/api/event_feed.h"
#include "cluster/api/workers.h"
#include "cluster/clock.h"
#include "cluster/file_contents.h"
#include "cluster/store/group_commit.h"
#include "src/http/router.h"

namespace llm_dist::cluster {

class FilesApi {
 public:
  struct Parts {
    Store& store;
    GroupCommit& commit;
    Workers& workers;
    const FileContents& contents;
    int64_t max_file_bytes = 0;
    WallClock now_us = system_time_us;
  };
  explicit FilesApi(Parts parts) : parts_(std::move(parts)) {}
  void add_routes(http::Router& router);

  static bool is_upload(const http::Request& head);
  // Of an upload, once its header has come and it is known who sends it. A request that its server did not
  // ask this for must not be handed to its route.
  http::Admission admit(const http::Request& head) const;
  uint64_t max_body_bytes() const;

 private:
  void upload(const http::Request& request, const WriterPtr& writer);
  void list(const http::Request& request, const WriterPtr& writer);
  void get(const http::Request& request, const WriterPtr& writer);
  void content(const http::Request& request, const WriterPtr& writer);
  void remove(const http::Request& request, const WriterPtr& writer);
  Result<StoredFile> find(const http::Request& request) const;

  Parts parts_;
};

}  // namespace llm_dist::cluster
