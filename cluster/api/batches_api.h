// OpenAI's /v1/batches: a batch is a job of type batch_inference with an input file.
#pragma once

#include "cluster/api/batch_json.h"
#include "cluster/api/event_feed.h"
#include "cluster/api/workers.h"
#include "cluster/catalogue.h"
#include "cluster/clock.h"
#include "cluster/file_contents.h"
#include "cluster/store/group_commit.h"
#include "src/http/router.h"

namespace llm_dist::cluster {

class BatchesApi {
 public:
  struct Parts {
    Store& store;
    GroupCommit& commit;
    Workers& workers;
    const FileContents& contents;
    const Catalogue& catalogue;
    WallClock now_us = system_time_us;
  };
  explicit BatchesApi(Parts parts) : parts_(std::move(parts)) {}
  void add_routes(http::Router& router);

 private:
  void create(const http::Request& request, const WriterPtr& writer);
  void list(const http::Request& request, const WriterPtr& writer);
  void get(const http::Request& request, const WriterPtr& writer);
  void cancel(const http::Request& request, const WriterPtr& writer);
  Result<SubmitJob> read_request(const http::Request& request, std::string& param) const;
  void refuse(const http::Request& request, const http::Response& refusal, const WriterPtr& writer) const;
  Result<BatchView> view(JobId job) const;
  void answer(JobId job, const WriterPtr& writer) const;
  void answer_as_made(const Written& written, const WriterPtr& writer) const;

  Parts parts_;
};

// "24h", or another number of s, m, h or d: seconds, from one to 30 days. invalid_argument otherwise.
Result<int64_t> parse_completion_window(const std::string& text);

}  // namespace llm_dist::cluster
