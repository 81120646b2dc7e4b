#include "src/server/pipeline.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "src/base/fnv1a.h"
#include "src/base/log_format.h"
#include "src/base/type_name.h"
#include "src/server/request_parser.h"

namespace llm_dist::server {
namespace {

// Tokens of each sequence that may wait for the stream thread: seconds of a stall at any speed seen so far.
constexpr int64_t kTokensWaitingPerSequence = 256;
constexpr int64_t kMinQueueCapacity = 4096;

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
      pump_(static_cast<size_t>(
          std::max(kMinQueueCapacity, model_.info.max_num_seqs * kTokensWaitingPerSequence))) {
  if (model_.info.system_fingerprint.empty()) {
    model_.info.system_fingerprint = "fp_" + hex(fnv1a(options.version + model_.info.served_names.front()));
  }
  for (int i = 0; i < options.num_text_threads; ++i) {
    text_threads_.emplace_back([this] { run(); });
    pthread_setname_np(text_threads_.back().native_handle(), "text");
  }
}

Pipeline::~Pipeline() { stop(); }

void Pipeline::stop() {
  jobs_.close();
  for (std::thread& thread : text_threads_) {
    if (thread.joinable()) thread.join();
  }
  pump_.stop();
}

void Pipeline::run() {
  constexpr double kWakeSeconds = 60;
  while (!jobs_.closed()) {
    if (auto job = jobs_.pop(Deadline::after_seconds(kWakeSeconds))) answer(*job);
  }
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
    // Out of memory, or a mistake of ours that one client found: not a reason to end everybody's streams.
    // Its message may quote the request.
    log_request(LogLevel::kError, job.request_id, "the request could not be handled: {}", type_name(failure));
    error = ApiError{.status = 500, .message = "the request could not be handled", .code = "internal_error"};
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
    auto encoded = model_.tokenizer->encode(*spec.prompt,
                                            {.add_special_tokens = spec.add_special_tokens.value_or(true)});
    if (!encoded.ok()) return ApiError{.message = encoded.status().message(), .param = "prompt"};
    ids = std::move(*encoded);
  }
  std::vector<std::string> spellings;
  if (spec.return_token_strs) {
    spellings.reserve(ids.size());
    for (int32_t id : ids) spellings.push_back(model_.tokenizer->spelling(id));
  }
  job.writer->send(
      {.body = render_tokens(ids, model_.info.max_model_len, spec.return_token_strs ? &spellings : nullptr)});
  log_answer(job.tag(), format("{} tokens", ids.size()));
  return std::nullopt;
}

std::optional<ApiError> Pipeline::detokenize(Job& job) {
  DetokenizeSpec spec;
  if (auto error = parse_detokenize(job.body, spec)) return error;
  if (!spec.model.empty()) {
    if (auto error = check_model(model_, spec.model)) return error;
  }
  if (auto error = check_ids(model_, spec.tokens, "tokens")) return error;
  job.writer->send({.body = render_text("prompt", model_.tokenizer->decode(spec.tokens, false))});
  log_answer(job.tag(), format("{} tokens", spec.tokens.size()));
  return std::nullopt;
}

}  // namespace llm_dist::server
