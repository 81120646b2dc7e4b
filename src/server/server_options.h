// What the API server is told: limits and keys before the model is loaded, facts about the model afterwards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one, see ApiServer::port()
  std::string uds_path;  // when set, this Unix socket instead of host and port
  std::string ssl_certfile;
  std::string ssl_keyfile;

  // "Authorization: Bearer <one of these>"; none: no key is asked for.
  std::vector<std::string> api_keys;
  // Listen beyond this machine without a key all the same.
  bool allow_keyless_remote = false;

  size_t max_body_bytes = 32 << 20;
  size_t max_header_bytes = 32 << 10;
  size_t max_connections = 4096;
  size_t max_unparsed_requests = 1024;  // waiting for a text thread; beyond: 503
  int num_text_threads = 2;             // parse, render the chat template, tokenize
  double request_timeout_seconds = 0;   // from arrival to the last byte; 0: none
  int64_t max_choices = 128;            // prompts × n of one request

  // /livez turns 503 when work is queued and no step ends for max(this, 20 × what a step of that size took).
  double hung_after_seconds = 10;
  std::string version = "0.1.0";
};

// Sampling values of requests that name none; absent: OpenAI's.
struct SamplingDefaults {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int64_t> top_k;
  std::optional<double> repetition_penalty;
  std::optional<int64_t> max_tokens;  // caps the default, never a value that the request names
};

struct ModelInfo {
  std::vector<std::string> served_names;  // the first is the one that replies name
  int64_t max_model_len = 0;              // prompt and output tokens
  int64_t vocab_size = 0;                 // of its embedding: the tokenizer may have fewer ids, or more
  int64_t max_num_seqs = 64;              // sizes the token queue
  int64_t max_logprobs = 20;              // the sampler's limit
  std::vector<int32_t> eos_ids;           // end a generation, unless the request says ignore_eos
  SamplingDefaults defaults;
  // Whatever changes the numbers: weights, layout, kernels. Empty: made from version and name.
  std::string system_fingerprint;
};

// One key a line; blank lines and lines that start with '#' are skipped. not_found, or invalid_argument for a
// file without a key or with a key that no header can carry.
Result<std::vector<std::string>> read_api_keys(const std::string& path);
// Those of the file, where one is named, and the one in LLM_DIST_API_KEY.
Result<std::vector<std::string>> accepted_keys(const std::string& path);

}  // namespace llm_dist::server
