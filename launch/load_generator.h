// Requests to a server at a given rate, each a stream, and when its tokens came.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "launch/server_access.h"

namespace llm_dist::launch {

struct LoadOptions {
  std::string path;                                               // "/v1/completions"
  double request_rate = std::numeric_limits<double>::infinity();  // a second
  double burstiness = 1;    // shape of the gamma distribution of the intervals; 1: a Poisson process
  int max_concurrency = 0;  // 0: no limit
  uint64_t seed = 0;
  double request_timeout_seconds = 600;
};

// One request that has ended. Times in seconds.
struct RequestRecord {
  bool ok() const { return error_kind.empty(); }

  double time_to_first_token = 0;      // from sending it
  double end_to_end = 0;               // to its last event
  std::vector<double> between_tokens;  // arrivals of the events that stand for tokens
  int64_t prompt_tokens = 0;           // of the server's usage, as are output_tokens
  int64_t output_tokens = 0;
  std::string error_kind;  // "http_503 queue_full", "connection", "timeout", "cut_off", …
  std::string error_message;
};

struct LoadProgress {
  size_t total = 0;
  size_t ended = 0;  // failed ones included
  size_t failed = 0;
  size_t running = 0;
  double seconds = 0;
};

struct LoadRun {
  std::vector<RequestRecord> records;  // in the order in which they ended
  double seconds = 0;                  // from the first request's sending to the last one's end
  size_t peak_concurrency = 0;
  size_t given_up = 0;  // in progress when the run was interrupted
  size_t not_sent = 0;
};

// When each of `count` requests is due, in seconds from the start; the first at once.
std::vector<double> arrival_times(size_t count, double request_rate, double burstiness, uint64_t seed);

// Sends the bodies in order and waits for their ends. on_progress: several times a second; false interrupts.
LoadRun run_load(const ServerAccess& server,
                 const LoadOptions& options,
                 const std::vector<std::string>& bodies,
                 const std::function<bool(const LoadProgress&)>& on_progress);

}  // namespace llm_dist::launch
