#include "launch/batch_generate.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "launch/whole_file.h"
#include "src/base/json_text.h"
#include "src/base/log.h"
#include "src/base/nearest.h"
#include "src/engine/engine.h"
#include "src/server/prepare.h"
#include "src/server/text_limit.h"
#include "src/text/detokenizer.h"

namespace llm_dist::launch {
namespace {

using nlohmann::json;

constexpr auto kLookAfter = std::chrono::milliseconds(100);
constexpr auto kSyncAfter = std::chrono::seconds(1);
constexpr auto kReportAfter = std::chrono::seconds(30);

// A line's sequence, filled by the step thread.
struct Job : engine::SequenceSink {
  size_t index = 0;
  json custom_id;
  size_t prompt_tokens = 0;
  int64_t max_tokens = 0;
  std::vector<int32_t> tokens;
  sched::FinishReason finish = sched::FinishReason::kNone;
  Status error;
  std::function<void(Job*)> on_end;

  void on_generated(const engine::Generated& generated) override {
    if (generated.token >= 0) tokens.push_back(generated.token);
    if (generated.error != nullptr) error = *generated.error;
    finish = generated.finish;
    if (finish != sched::FinishReason::kNone) on_end(this);
  }
};

// What has ended and waits to be written.
class Ended {
 public:
  void push(Job* job) {
    std::lock_guard lock(mutex_);
    jobs_.push_back(job);
    there_.notify_one();
  }
  Job* pop(Duration wait) {
    std::unique_lock lock(mutex_);
    if (!there_.wait_for(lock, wait, [this] { return !jobs_.empty(); })) return nullptr;
    Job* job = jobs_.front();
    jobs_.pop_front();
    return job;
  }

 private:
  std::mutex mutex_;
  std::condition_variable there_;
  std::deque<Job*> jobs_;
};

constexpr std::string_view kFields[] = {
    "custom_id", "prompt", "messages", "max_tokens", "temperature", "top_p", "top_k", "seed", "ignore_eos"};

template <typename T>
Status read_field(const json& line, const char* name, T& value) {
  auto found = line.find(name);
  if (found == line.end() || found->is_null()) return ok_status();
  bool fits = std::is_same_v<T, bool> ? found->is_boolean()
              : std::is_integral_v<T> ? found->is_number_integer()
                                      : found->is_number();
  if (!fits) return invalid_argument(format("{} is of another type", name));
  // A seed has all 64 bits: a negative one is a seed like any other.
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool> && sizeof(T) < sizeof(int64_t)) {
    fits = found->is_number_unsigned() ? std::in_range<T>(found->template get<uint64_t>())
                                       : std::in_range<T>(found->template get<int64_t>());
    if (!fits) return invalid_argument(format("{} is out of range", name));
  }
  value = found->template get<T>();
  return ok_status();
}

Status read_sampling(const json& line, sched::SamplingParams& sampling) {
  RETURN_IF_ERROR(read_field(line, "max_tokens", sampling.max_tokens));
  RETURN_IF_ERROR(read_field(line, "temperature", sampling.temperature));
  RETURN_IF_ERROR(read_field(line, "top_p", sampling.top_p));
  RETURN_IF_ERROR(read_field(line, "top_k", sampling.top_k));
  RETURN_IF_ERROR(read_field(line, "seed", sampling.seed));
  RETURN_IF_ERROR(read_field(line, "ignore_eos", sampling.ignore_eos));
  bool in_range = sampling.max_tokens > 0 && sampling.temperature >= 0 && sampling.top_p > 0 &&
                  sampling.top_p <= 1 && sampling.top_k >= 0;
  if (!in_range) return invalid_argument("max_tokens, temperature, top_p or top_k is out of range");
  if (sampling.ignore_eos) sampling.end_token_ids.clear();
  return ok_status();
}

Result<std::vector<int32_t>> read_prompt(const json& line, const TextModel& text, int64_t max_model_len) {
  bool chat = line.contains("messages");
  if (chat == line.contains("prompt")) return invalid_argument("a line has either prompt or messages");
  if (!chat) {
    if (!line["prompt"].is_string()) return invalid_argument("prompt is not a string");
    return text.tokenizer->encode(line["prompt"].get<std::string>(), {.add_special_tokens = true});
  }
  if (!text.chat_template) return invalid_argument("the model has no chat template: give prompt");
  const std::string messages = line["messages"].dump();
  if (auto beyond = server::beyond_rendering(max_model_len, messages.size()))
    return invalid_argument(std::move(*beyond));
  ASSIGN_OR_RETURN(std::string rendered, text.chat_template->render(messages));
  return text.tokenizer->encode(rendered, {.add_special_tokens = false});
}

Result<sched::SequenceRequest> read_request(const json& line,
                                            const sched::SamplingParams& defaults,
                                            const TextModel& text,
                                            int64_t max_model_len) {
  if (!line.is_object()) return invalid_argument("the line is no JSON object");
  for (const auto& [name, value] : line.items()) {
    std::string_view nearest = nearest_word(name, std::span<const std::string_view>(kFields));
    if (nearest != name)
      return invalid_argument(format("{} is not a field here; the nearest is {}", name, nearest));
  }
  sched::SequenceRequest request{.sampling = defaults};
  RETURN_IF_ERROR(read_sampling(line, request.sampling));
  ASSIGN_OR_RETURN(request.prompt, read_prompt(line, text, max_model_len));
  request.arrival = Clock::now();
  return request;
}

// A line's own max_tokens wants room, as in a request to the server; that of the flag gives way.
Status check_room(const json& line, const sched::SequenceRequest& request, int64_t max_model_len) {
  const auto found = line.find("max_tokens");
  std::optional<int64_t> own;
  if (found != line.end() && !found->is_null()) own = request.sampling.max_tokens;
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens + own.value_or(1) <= max_model_len) return ok_status();
  return invalid_argument(server::beyond_context(max_model_len, prompt_tokens, own));
}

std::string to_line(const json& answer) {
  return answer.dump(-1, ' ', false, json::error_handler_t::replace);
}

class Batch {
 public:
  Batch(const BatchFlags& flags,
        const sched::SamplingParams& defaults,
        RankProcess& process,
        ShutdownSignal& signal,
        TextModel text,
        BatchFiles files)
      : flags_(flags),
        defaults_(defaults),
        signal_(signal),
        text_(std::move(text)),
        input_(std::move(files.input)),
        output_(std::move(files.output)),
        max_model_len_(process.engine().options().max_model_len),
        // Enough that slots never stay empty while the next lines are read.
        window_(static_cast<size_t>(2 * process.engine().options().max_num_seqs)) {
    result_.before = output_.num_answered();
    engine_ = engine::Engine::start(process.engine(),
                                    process.channel(),
                                    {.max_queued_requests = static_cast<int64_t>(window_)},
                                    process.hooks(),
                                    [&process](const Status& cause) { process.give_up(cause); });
  }

  Result<BatchResult> run() {
    while (true) {
      RETURN_IF_ERROR(submit_lines());
      if (jobs_.empty() && (stopping_ || input_ended_)) break;
      Job* job = ended_.pop(kLookAfter);
      if (job != nullptr) RETURN_IF_ERROR(write_answer(*job));
      RETURN_IF_ERROR(keep_up());
      if (!stopping_ && signal_.is_raised()) stop_early();
      if (stopping_ && Clock::now() > give_up_at_) break;
    }
    RETURN_IF_ERROR(output_.sync());
    engine_->stop();
    result_.complete = input_ended_ && jobs_.empty() && result_.left == 0;
    if (num_cut_ > 0)
      log_warning("--max-tokens {}: {} cut at --max-model-len {}",
                  defaults_.max_tokens,
                  num_cut_ == 1 ? "1 answer was" : format("{} answers were", num_cut_),
                  max_model_len_);
    return result_;
  }

 private:
  void stop_early() {
    stopping_ = true;
    give_up_at_ = Deadline::after_seconds(flags_.shutdown_timeout_seconds).when();
    log_info("asked to end: {} running lines get {} s", jobs_.size(), flags_.shutdown_timeout_seconds);
  }

  Status submit_lines() {
    while (!stopping_ && !input_ended_ && jobs_.size() < window_) {
      std::optional<BatchLine> line = waiting_ ? std::exchange(waiting_, std::nullopt) : input_.next();
      if (!line) {
        input_ended_ = true;
      } else if (!output_.holds(line->index)) {
        RETURN_IF_ERROR(submit(*line));
      }
      if (waiting_) break;
    }
    return ok_status();
  }

  Status submit(const BatchLine& line) {
    bool deep = json_is_too_deep(line.text);
    json parsed = deep ? json() : json::parse(line.text, nullptr, /*allow_exceptions=*/false);
    auto job = std::make_shared<Job>();
    job->index = line.index;
    if (parsed.is_object() && parsed.contains("custom_id")) job->custom_id = parsed["custom_id"];
    job->on_end = [this](Job* ended) { ended_.push(ended); };
    auto request = read_request(parsed, defaults_, text_, max_model_len_);
    if (!request.ok()) return put_off(line, *job, request.status());
    if (Status room = check_room(parsed, *request, max_model_len_); !room.ok()) return refuse(*job, room);
    job->prompt_tokens = request->prompt.size();
    job->max_tokens = request->sampling.max_tokens;
    jobs_[job.get()] = job;
    auto submitted = engine_->submit(std::move(request).value(), job);
    if (submitted.ok()) return ok_status();
    jobs_.erase(job.get());
    // What can never run is this line's own fault; anything else ends the batch.
    if (submitted.status().code() == StatusCode::kInvalidArgument) return refuse(*job, submitted.status());
    return submitted.status();
  }

  json answer_to(const Job& job) const {
    json answer = {{"index", job.index}};
    if (!job.custom_id.is_null()) answer["custom_id"] = job.custom_id;
    return answer;
  }

  // What is not the line's own fault is no answer to it: another time it may be read.
  Status put_off(const BatchLine& line, const Job& job, const Status& why) {
    if (why.code() == StatusCode::kInvalidArgument) return refuse(job, why);
    if (why.code() == StatusCode::kUnavailable && text::ChatTemplate::can_render()) {
      waiting_ = line;
      return ok_status();
    }
    if (why.code() != StatusCode::kDeadlineExceeded) return why;
    log_warning("line {} is left for the next time: {}", line.index, why.message());
    ++result_.left;
    return ok_status();
  }

  Status refuse(const Job& job, const Status& why) {
    json answer = answer_to(job);
    answer["error"] = {{"message", why.message()}, {"code", std::string(to_string(why.code()))}};
    ++result_.refused;
    ++result_.done;
    return output_.append(to_line(answer));
  }

  Status write_answer(Job& job) {
    std::shared_ptr<Job> kept = jobs_.extract(&job).mapped();
    RETURN_IF_ERROR(job.error);
    text::Detokenizer detokenizer(*text_.tokenizer, true);
    std::string out;
    for (int32_t token : job.tokens) out += detokenizer.push(token);
    out += detokenizer.flush();
    json answer = answer_to(job);
    answer["text"] = out;
    answer["finish_reason"] = std::string(sched::to_string(job.finish));
    answer["usage"] = {{"prompt_tokens", job.prompt_tokens}, {"completion_tokens", job.tokens.size()}};
    ++result_.done;
    if (job.finish == sched::FinishReason::kLength && std::ssize(job.tokens) < job.max_tokens) ++num_cut_;
    return output_.append(to_line(answer));
  }

  Status keep_up() {
    TimePoint now = Clock::now();
    if (now > report_at_) {
      log_info("{} lines answered, {} before", result_.done, result_.before);
      report_at_ = now + kReportAfter;
    }
    if (now < sync_at_) return ok_status();
    sync_at_ = now + kSyncAfter;
    return output_.sync();
  }

  const BatchFlags& flags_;
  const sched::SamplingParams& defaults_;
  ShutdownSignal& signal_;
  TextModel text_;
  BatchInput input_;
  BatchOutput output_;
  int64_t max_model_len_;
  size_t window_;
  std::map<Job*, std::shared_ptr<Job>> jobs_;  // submitted and not written
  Ended ended_;
  std::unique_ptr<engine::Engine> engine_;  // gone first: it calls the jobs
  BatchResult result_;
  size_t num_cut_ = 0;                // answers that the length of the model ended
  std::optional<BatchLine> waiting_;  // until renders that took too long have ended
  bool input_ended_ = false;
  bool stopping_ = false;
  TimePoint give_up_at_;
  TimePoint sync_at_;
  TimePoint report_at_ = Clock::now() + kReportAfter;
};

}  // namespace

Result<BatchFiles> open_batch_files(const BatchFlags& flags) {
  RETURN_IF_ERROR(check_writable("--output-file", flags.output_file));
  std::error_code not_there;
  if (std::filesystem::equivalent(flags.input_file, flags.output_file, not_there))
    return invalid_argument(format("--output-file {} is --input-file, too", flags.output_file));
  ASSIGN_OR_RETURN(BatchInput input, BatchInput::open(flags.input_file));
  ASSIGN_OR_RETURN(BatchOutput output, BatchOutput::open(flags.output_file));
  return BatchFiles{.input = std::move(input), .output = std::move(output)};
}

Result<BatchResult> generate_batch(const BatchFlags& flags,
                                   const sched::SamplingParams& defaults,
                                   TextModel text,
                                   BatchFiles files,
                                   RankProcess& process,
                                   ShutdownSignal& signal) {
  Batch batch(flags, defaults, process, signal, std::move(text), std::move(files));
  return batch.run();
}

}  // namespace llm_dist::launch
