#include "src/server/pipeline.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>

#include "src/base/fnv1a.h"
#include "src/server/request_parser.h"

namespace llm_dist::server {
namespace {

// Tokens of each sequence that may wait for the stream thread: seconds of a stall at any speed seen so far.
constexpr int64_t kTokensWaitingPerSequence = 256;
constexpr int64_t kMinQueueCapacity = 4096;
// Tokenizers read 1 to 2 MB/s: shorter bodies take a text thread for at most a quarter of a second.
constexpr size_t kLongBodyBytes = 256 << 10;

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Pipeline::Pipeline(const ServerOptions& options, EnginePort& engine, ServedModel model, Metrics& metrics)
    : options_(options),
      engine_(engine),
      model_(std::move(model)),
      metrics_(metrics),
      created_unix_s_(unix_seconds()),
      jobs_(options.max_unparsed_requests),
      long_jobs_(options.max_unparsed_requests),
      pump_(static_cast<size_t>(
          std::max(kMinQueueCapacity, model_.info.max_num_seqs * kTokensWaitingPerSequence))) {
  if (model_.info.system_fingerprint.empty()) {
    model_.info.system_fingerprint = "fp_" + hex(fnv1a(options.version + model_.info.served_names.front()));
  }
  for (int i = 0; i < options.num_text_threads; ++i) start_text_thread(jobs_, "text");
  start_text_thread(long_jobs_, "long text");
}

Pipeline::~Pipeline() {
  stop(Deadline::after_seconds(0));
  for (std::thread& thread : text_threads_) thread.join();
}

void Pipeline::start_text_thread(BoundedQueue<Job>& jobs, const char* name) {
  {
    std::lock_guard lock(mutex_);
    ++num_running_;
  }
  text_threads_.emplace_back([this, &jobs] { run(jobs); });
  pthread_setname_np(text_threads_.back().native_handle(), name);
}

bool Pipeline::enqueue(Job& job) {
  return (job.body.size() < kLongBodyBytes ? jobs_ : long_jobs_).try_push(job);
}

bool Pipeline::stop(Deadline deadline) {
  jobs_.close();
  long_jobs_.close();
  std::unique_lock lock(mutex_);
  const bool ended = text_thread_ended_.wait_until(lock, deadline.when(), [&] { return num_running_ == 0; });
  lock.unlock();
  pump_.stop();
  return ended;
}

void Pipeline::run(BoundedQueue<Job>& jobs) {
  constexpr double kWakeSeconds = 60;
  while (!jobs.closed()) {
    if (auto job = jobs.pop(Deadline::after_seconds(kWakeSeconds))) answer(*job);
  }
  std::lock_guard lock(mutex_);
  --num_running_;
  text_thread_ended_.notify_all();
}

void Pipeline::answer(Job& job) {
  if (job.writer->disconnected()) return;
  std::optional<ApiError> error;
  try {
    switch (job.endpoint) {
      case Endpoint::kTokenize: error = tokenize(job); break;
      case Endpoint::kDetokenize: error = detokenize(job); break;
      default: error = generate(job); break;
    }
  } catch (const std::exception& failure) {
    error = log_exception(job.request_id, failure);
  }
  if (!error) return;
  record_refusal(job.tag(), *error, metrics_);
  job.writer->send(error_response(*error));
}

ReplyHead Pipeline::reply_head(const GenerateSpec& spec, const std::string& request_id) {
  bool chat = spec.endpoint == Endpoint::kChat;
  return {.endpoint = spec.endpoint,
          .id = (chat ? "chatcmpl-" : "cmpl-") + request_id,
          .created_unix_s = unix_seconds(),
          .model = spec.model,
          .system_fingerprint = model_.info.system_fingerprint,
          .with_logprobs = spec.num_logprobs >= 0,
          .token_names = spec.token_names,
          .include_usage = spec.include_usage};
}

std::optional<ApiError> Pipeline::generate(Job& job) {
  GenerateSpec spec;
  if (auto error = parse_generate(job.endpoint, job.body, spec)) return error;
  PreparedRequest prepared;
  if (auto error = prepare(model_, options_.max_choices, random_.next(), std::move(spec), prepared))
    return error;
  ReplyHead head = reply_head(prepared.spec, job.request_id);
  auto generation =
      std::make_shared<Generation>(Generation::Parts{.engine = &engine_,
                                                     .metrics = &metrics_,
                                                     .model = &model_,
                                                     .queue = pump_.queue(),
                                                     .writer = job.writer,
                                                     .ticket = std::move(job.ticket),
                                                     .arrival = job.arrival,
                                                     .request_id = job.request_id,
                                                     .timeout_seconds = options_.request_timeout_seconds,
                                                     .head = std::move(head),
                                                     .request = std::move(prepared)});
  job.writer->on_disconnect([weak = std::weak_ptr(generation), queue = pump_.queue()] {
    if (auto left = weak.lock()) left->note_disconnected();
    TokenRecord wake;
    queue->push(wake);
  });
  if (pump_.begin(std::move(generation))) return std::nullopt;
  return ApiError{.status = 503, .message = "the server is stopping", .code = "draining", .retry_after_s = 5};
}

std::optional<ApiError> Pipeline::tokenize(Job& job) {
  TokenizeSpec spec;
  if (auto error = parse_tokenize(job.body, spec)) return error;
  if (!spec.model.empty()) {
    if (auto error = check_model(model_, spec.model)) return error;
  }
  std::vector<int32_t> ids;
  if (spec.chat) {
    if (auto error = tokenize_chat(model_, *spec.chat, spec.add_special_tokens.value_or(false), ids))
      return error;
  } else {
    if (auto error = tokenize_text(model_, *spec.prompt, spec.add_special_tokens.value_or(true), ids))
      return error;
  }
  std::function<std::string(int32_t)> spelling;
  if (spec.return_token_strs) spelling = [&](int32_t id) { return model_.tokenizer->spelling(id); };
  job.writer->send({.body = render_tokens(ids, model_.info.max_model_len, spelling)});
  log_answer(job.tag(), format("{} tokens", ids.size()));
  return std::nullopt;
}

std::optional<ApiError> Pipeline::detokenize(Job& job) {
  DetokenizeSpec spec;
  if (auto error = parse_detokenize(job.body, spec)) return error;
  if (!spec.model.empty()) {
    if (auto error = check_model(model_, spec.model)) return error;
  }
  if (auto error = check_detokenized(model_, spec.tokens)) return error;
  job.writer->send({.body = render_text("prompt", model_.tokenizer->decode(spec.tokens, false))});
  log_answer(job.tag(), format("{} tokens", spec.tokens.size()));
  return std::nullopt;
}

}  // namespace llm_dist::server
