// What a client may ask of a job: typed fields, never a command.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/catalogue.h"
#include "cluster/store/command.h"
#include "src/base/status.h"

namespace llm_dist::cluster {

// The fields of a job's `spec`, all kinds together; what a kind does not use stays as it is.
struct JobSpec {
  std::string model{};
  int tp = 1;
  int pp = 1;
  // serve, batch_inference
  int max_model_len = 0;  // 0: the model's own
  int max_num_seqs = 0;   // 0: the program's default
  // bench
  std::string bench{};  // "latency" or "throughput"
  std::string batch{};  // "1,8"
  int input_len = 0;
  int output_len = 0;
  // batch_inference
  std::string input_file_id{};
  std::string endpoint{};  // "/v1/chat/completions" or "/v1/completions"
  int replicas = 1;        // that take its items

  int num_ranks() const { return tp * pp; }
};

// The body of POST /v1/jobs, its spec in one canonical spelling and the hash of all that it asks.
// invalid_argument: no JSON object, an unknown field (the nearest known one is named), a wrong type or range,
// a field of another kind of job; not_found: no such model. `param` becomes the field that is wrong.
Result<SubmitJob> parse_job_request(const std::string& body,
                                    const Catalogue& catalogue,
                                    int64_t now_us,
                                    std::string& param);

// Of all that a request asks: the same for the same JSON, however it is spelled. `body`: a JSON text.
std::string request_hash(std::string_view route, const std::string& body);
// What a body asks for as its project; empty: nothing, or it is no JSON object.
std::string asked_project(const std::string& body);

// The fields that a job of this kind may have.
std::vector<std::string_view> job_fields(JobKind kind);

// Of a `serve` job whose replica is like that of this batch_inference job.
std::string replica_spec(const std::string& batch_spec);

// A spec as parse_job_request wrote it.
JobSpec read_job_spec(const std::string& json);

}  // namespace llm_dist::cluster
