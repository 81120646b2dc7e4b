#include "src/server/generation.h"

#include <algorithm>
#include <numeric>

#include "src/base/format.h"
#include "src/http/sse.h"

namespace llm_dist::server {
namespace {

// On the step thread: copies, and never waits.
class QueueSink final : public engine::SequenceSink {
 public:
  QueueSink(std::shared_ptr<Generation> generation, std::shared_ptr<TokenQueue> queue, int32_t choice)
      : generation_(std::move(generation)), queue_(std::move(queue)), choice_(choice) {}

  void on_generated(const engine::Generated& generated) override {
    TokenRecord record;
    record.kind = TokenRecord::Kind::kToken;
    record.finish = generated.finish;
    record.choice = choice_;
    record.token = generated.token;
    record.prompt_position = generated.prompt_position;
    record.logprob = generated.logprob;
    size_t num_top = std::min(generated.top_ids.size(), TokenRecord::kMaxTop);
    record.num_top = static_cast<uint32_t>(num_top);
    std::copy_n(generated.top_ids.begin(), num_top, record.top_ids.begin());
    std::copy_n(generated.top_logprobs.begin(), num_top, record.top_logprobs.begin());
    record.time = Clock::now();
    record.started = generated.started;
    record.generation = generation_;
    if (generated.error != nullptr) record.error = *generated.error;
    queue_->push(record);  // refused only when the server has shut down
  }

 private:
  std::shared_ptr<Generation> generation_;
  std::shared_ptr<TokenQueue> queue_;
  int32_t choice_;
};

void append(Delta& whole, Delta delta) {
  whole.text += delta.text;
  std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(whole.logprobs));
}

}  // namespace

Generation::Generation(Parts parts) : parts_(std::move(parts)) {
  const GenerateSpec& spec = parts_.request.spec;
  tracks_.reserve(parts_.request.prompts.size() * static_cast<size_t>(spec.num_sequences()));
  for (size_t i = 0; i < parts_.request.prompts.size(); ++i) {
    const PreparedPrompt& prompt = parts_.request.prompts[i];
    for (int64_t choice = 0; choice < spec.num_sequences(); ++choice) {
      tracks_.push_back(
          {.choice = Choice(*parts_.model->tokenizer, spec, prompt.ids, prompt.echo), .prompt = i});
    }
    if (spec.num_prompt_logprobs < 0) continue;
    append_prompt_logprob(prompt_logprobs_.emplace_back(),
                          unknown_logprob(*parts_.model->tokenizer, prompt.ids.front()));
  }
  num_open_ = tracks_.size();
}

// An echo scores with each choice, since it may be streamed; otherwise once is enough.
int32_t Generation::num_prompt_logprobs(uint32_t choice) const {
  const GenerateSpec& spec = parts_.request.spec;
  int32_t echoed = spec.echoes_logprobs() ? spec.num_logprobs : -1;
  return choice == 0 ? std::max(echoed, spec.num_prompt_logprobs) : echoed;
}

sched::SequenceRequest Generation::sequence_request(const Track& track, uint32_t choice) const {
  const PreparedPrompt& prompt = parts_.request.prompts[track.prompt];
  sched::SequenceRequest request;
  request.prompt = prompt.ids;
  request.sampling = parts_.request.sampling;
  request.sampling.choice = choice;
  // Where the request names none, prompts draw apart, as its choices do: equal ones are asked for several
  // answers.
  if (!parts_.request.spec.seed) request.sampling.seed += track.prompt * uint64_t{0x9e3779b97f4a7c15};
  request.sampling.num_prompt_logprobs = num_prompt_logprobs(choice);
  request.sampling.max_tokens = prompt.max_tokens;
  request.priority = static_cast<int32_t>(parts_.request.spec.priority);
  request.arrival = parts_.arrival;
  return request;
}

void Generation::begin() {
  if (disconnected_) return abandon();
  for (size_t i = 0; i < tracks_.size(); ++i) {
    auto choice = static_cast<uint32_t>(i % static_cast<size_t>(parts_.request.spec.num_sequences()));
    auto sink = std::make_shared<QueueSink>(shared_from_this(), parts_.queue, static_cast<int32_t>(i));
    sched::SequenceRequest request = sequence_request(tracks_[i], choice);
    request.joins = i > 0;
    auto id = parts_.engine->submit(std::move(request), std::move(sink));
    if (!id.ok()) return fail(from_status(id.status()));
    tracks_[i].id = *id;
  }
}

void Generation::take(const TokenRecord& record) {
  if (done_) return;
  if (disconnected_) return abandon();
  if (record.finish == sched::FinishReason::kError) return fail(from_status(record.error));
  auto index = static_cast<size_t>(record.choice);
  Track& track = tracks_[index];
  if (track.choice.finished()) return;
  if (record.finish == sched::FinishReason::kCancelled) {
    return fail({.status = 500, .message = "the engine gave this request up", .code = "engine_error"});
  }
  if (record.prompt_position >= 0) return take_score(track, record);
  track.ended = record.finish != sched::FinishReason::kNone;
  track.sum_logprobs += static_cast<double>(record.logprob);
  observe(track, record);
  Delta delta = track.choice.push(record);
  if (track.choice.finished()) finish_choice(track);
  send_delta(index, std::move(delta));
  if (num_open_ == 0 && !done_) finish();
}

void Generation::take_score(Track& track, const TokenRecord& record) {
  const GenerateSpec& spec = parts_.request.spec;
  track.choice.push_score(record);
  if (spec.num_prompt_logprobs < 0 || record.choice % spec.num_sequences() != 0) return;
  append_prompt_logprob(prompt_logprobs_[track.prompt],
                        logprob_of(*parts_.model->tokenizer, record, spec.num_prompt_logprobs));
}

void Generation::observe(Track& track, const TokenRecord& record) {
  if (track.choice.num_tokens() == 0) {
    track.first_token = record.time;
    parts_.metrics->observe_time_to_first_token(seconds_between(parts_.arrival, record.time));
    parts_.metrics->observe_queue_time(seconds_between(parts_.arrival, record.started));
    parts_.metrics->observe_prefill_time(seconds_between(record.started, record.time));
  } else {
    parts_.metrics->observe_inter_token_latency(seconds_between(track.last_token, record.time));
  }
  track.last_token = record.time;
}

void Generation::finish_choice(Track& track) {
  --num_open_;
  // A stop string: the engine is a few tokens ahead.
  if (!track.ended) parts_.engine->cancel(track.id);
  track.ended = true;
  parts_.metrics->count_finished(track.choice.finish() == sched::FinishReason::kLength ? "length" : "stop");
  parts_.metrics->observe_decode_time(seconds_between(track.first_token, track.last_token));
}

// The head goes out with the first token: an engine that refuses a request before can still be a status.
bool Generation::open_stream() {
  if (streaming_) return true;
  streaming_ = parts_.writer->start_stream(200, http::sse_headers());
  if (streaming_ && parts_.head.endpoint == Endpoint::kChat) {
    for (size_t i = 0; i < tracks_.size(); ++i) {
      if (!write(render_chunk(parts_.head, {.index = static_cast<int32_t>(i), .role = true}))) return false;
    }
  }
  return streaming_;
}

void Generation::send_delta(size_t index, Delta delta) {
  Track& track = tracks_[index];
  if (!parts_.request.spec.stream) return append(track.whole, std::move(delta));
  bool sent = open_stream();
  auto choice = static_cast<int32_t>(index);
  if (sent && !delta.empty()) {
    sent = write(render_chunk(parts_.head, {.index = choice, .content = std::move(delta)}));
  }
  if (sent && track.choice.finished()) {
    sent = write(render_chunk(parts_.head, {.index = choice, .finish = track.choice.finish()}));
  }
  if (!sent) abandon();
}

bool Generation::write(const std::string& json) { return parts_.writer->write(http::sse_event(json)); }

Usage Generation::usage() const {
  Usage usage;
  for (const PreparedPrompt& prompt : parts_.request.prompts) {
    usage.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  }
  for (const Track& track : tracks_) usage.completion_tokens += track.choice.num_tokens();
  return usage;
}

// With best_of, of each prompt the n whose tokens are likeliest on average.
std::vector<size_t> Generation::replied_tracks() const {
  const auto num_sequences = static_cast<size_t>(parts_.request.spec.num_sequences());
  const auto n = static_cast<size_t>(parts_.request.spec.n);
  auto mean = [&](size_t i) {
    return tracks_[i].sum_logprobs /
           static_cast<double>(std::max<int64_t>(1, tracks_[i].choice.num_tokens()));
  };
  std::vector<size_t> replied;
  for (size_t first = 0; first < tracks_.size(); first += num_sequences) {
    std::vector<size_t> order(num_sequences);
    std::iota(order.begin(), order.end(), first);
    if (n < num_sequences) {
      std::ranges::stable_sort(order, [&](size_t a, size_t b) { return mean(a) > mean(b); });
    }
    replied.insert(replied.end(), order.begin(), order.begin() + static_cast<ptrdiff_t>(n));
  }
  return replied;
}

RequestTag Generation::tag() const {
  return {.id = parts_.request_id, .endpoint = parts_.head.endpoint, .arrival = parts_.arrival};
}

void Generation::log_end() const {
  TimePoint first = tracks_.front().first_token;
  for (const Track& track : tracks_) first = std::min(first, track.first_token);
  Usage used = usage();
  log_answer(tag(),
             format("{} prompt tokens, {} tokens, first after {} s",
                    used.prompt_tokens,
                    used.completion_tokens,
                    seconds_between(parts_.arrival, first)));
}

void Generation::finish() {
  // Before it is said to have gone well: what takes most memory.
  std::string reply = parts_.request.spec.stream ? std::string() : render_whole();
  log_end();
  parts_.metrics->observe_e2e_latency(seconds_between(parts_.arrival, Clock::now()));
  if (parts_.request.spec.stream) {
    if (parts_.head.include_usage) write(render_usage_chunk(parts_.head, usage()));
    write("[DONE]");
    parts_.writer->end();
    return release();
  }
  parts_.writer->send({.body = std::move(reply)});
  release();
}

// Moves all of it out.
std::string Generation::render_whole() {
  std::vector<ChoiceReply> choices;
  choices.reserve(tracks_.size());
  for (size_t i : replied_tracks()) {
    Track& track = tracks_[i];
    choices.push_back(
        {.index = static_cast<int32_t>(choices.size()),
         .content = std::move(track.whole),
         .finish = track.choice.finish(),
         .prompt_logprobs = prompt_logprobs_.empty() ? nullptr : &prompt_logprobs_[track.prompt]});
  }
  std::string reply = render_reply(parts_.head, choices, usage());
  prompt_logprobs_.clear();
  return reply;
}

void Generation::abandon(const char* why) {
  if (done_) return;
  log_refusal(tag(), {.status = 499, .message = {}, .code = why});
  cancel_rest("abort");
  release();
}

void Generation::fail(const ApiError& error) {
  if (done_) return;
  record_refusal(tag(), error, *parts_.metrics);
  cancel_rest("error");
  if (streaming_) {
    write(error_json(error));
    parts_.writer->end();
  } else {
    parts_.writer->send(error_response(error));
  }
  release();
}

void Generation::fail(const std::exception& failure) { fail(log_exception(parts_.request_id, failure)); }

void Generation::check() {
  if (done_) return;
  if (disconnected_) return abandon();
  if (parts_.timeout_seconds > 0 && seconds_between(parts_.arrival, Clock::now()) > parts_.timeout_seconds) {
    fail({.status = 504,
          .message = format("the request took longer than --request-timeout {} s", parts_.timeout_seconds),
          .code = "request_timeout"});
  }
}

void Generation::cancel_rest(std::string_view reason) {
  for (Track& track : tracks_) {
    if (track.id != 0 && !std::exchange(track.ended, true)) parts_.engine->cancel(track.id);
    if (!track.choice.finished()) parts_.metrics->count_finished(reason);
  }
}

// The engine may hold a sink, and so this object, a little longer: what others wait for goes now.
void Generation::release() noexcept {
  done_ = true;
  parts_.writer.reset();
  parts_.ticket.reset();
  tracks_.clear();
  prompt_logprobs_.clear();
  parts_.request = {};
}

}  // namespace llm_dist::server
