// Pipeline: what serves requests once there is a model. Text threads parse, render and tokenize; the pump's
// stream thread sends what the engine makes of it. Long texts have a thread of their own: a few of them would
// otherwise hold up everybody's.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/base/bounded_queue.h"
#include "src/http/response_writer.h"
#include "src/server/metrics.h"
#include "src/server/open_requests.h"
#include "src/server/prepare.h"
#include "src/server/random_source.h"
#include "src/server/request_log.h"
#include "src/server/server_options.h"
#include "src/server/token_pump.h"

namespace llm_dist::server {

// A request as the I/O thread hands it over.
struct Job {
  Endpoint endpoint = Endpoint::kChat;
  std::string body;
  std::shared_ptr<http::ResponseWriter> writer;
  OpenRequests::Ticket ticket;
  TimePoint arrival;
  std::string request_id;

  RequestTag tag() const { return {.id = request_id, .endpoint = endpoint, .arrival = arrival}; }
};

class Pipeline {
 public:
  // `engine`, `metrics` and what `model` points to outlive it.
  Pipeline(const ServerOptions& options, EnginePort& engine, ServedModel model, Metrics& metrics);
  ~Pipeline();  // stop(), however long a text takes

  // False when too many requests wait; the job is then untouched.
  bool enqueue(Job& job);
  // See TokenPump.
  bool fail_all(const ApiError& error, Deadline deadline) { return pump_.fail_all(error, deadline); }
  // Abandons what waits or is in progress. False while a text is still being tokenized at the deadline, which
  // nothing can cut short: that thread goes on to use the tokenizer, and nothing else that is not ours.
  bool stop(Deadline deadline);

  const ServedModel& model() const { return model_; }
  EnginePort& engine() { return engine_; }
  int64_t created_unix_s() const { return created_unix_s_; }

 private:
  void start_text_thread(BoundedQueue<Job>& jobs, const char* name);
  void run(BoundedQueue<Job>& jobs);
  void answer(Job& job);
  std::optional<ApiError> generate(Job& job);
  std::optional<ApiError> tokenize(Job& job);
  std::optional<ApiError> detokenize(Job& job);
  ReplyHead reply_head(const GenerateSpec& spec, const std::string& request_id);

  ServerOptions options_;
  EnginePort& engine_;
  ServedModel model_;
  Metrics& metrics_;
  int64_t created_unix_s_;
  RandomSource random_;
  BoundedQueue<Job> jobs_;
  BoundedQueue<Job> long_jobs_;
  TokenPump pump_;
  std::mutex mutex_;
  std::condition_variable text_thread_ended_;
  size_t num_running_ = 0;  // text threads, under the mutex
  std::vector<std::thread> text_threads_;
};

}  // namespace llm_dist::server
