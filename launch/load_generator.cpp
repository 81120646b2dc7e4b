#include "launch/load_generator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <random>

#include "src/base/clock.h"
#include "src/base/format.h"
#include "src/http/async_client.h"
#include "src/http/sse.h"

namespace llm_dist::launch {
namespace {

constexpr auto kProgressEvery = std::chrono::milliseconds(100);

// A request in progress.
struct Flight {
  Flight() : parser([this](const http::SseEvent& event) { return take(event.data); }) {}
  Flight(const Flight&) = delete;

  bool on_data(std::string_view piece);
  bool take(std::string_view data);
  void fail(std::string kind, std::string message);
  RequestRecord end(const Result<http::Response>& response);

  http::SseParser parser;
  TimePoint sent;
  TimePoint now;  // of the piece that is being read
  TimePoint last_token;
  bool started = false;  // a first token has come
  bool done = false;     // "[DONE]" has come
  bool has_usage = false;
  RequestRecord record;
};

bool Flight::on_data(std::string_view piece) {
  now = Clock::now();
  return parser.feed(piece);
}

bool Flight::take(std::string_view data) {
  CompletionEvent event = read_completion_event(data);
  if (event.failed) {
    std::string kind = event.error.code.empty() ? "stream_error" : "stream_error " + event.error.code;
    fail(std::move(kind), event.error.message);
    return false;
  }
  done = event.done;
  if (done) return true;
  record.end_to_end = seconds_between(sent, now);
  if (event.has_usage) {
    has_usage = true;
    record.prompt_tokens = event.usage.prompt_tokens;
    record.output_tokens = event.usage.completion_tokens;
  }
  if (!event.has_token) return true;
  if (started) {
    record.between_tokens.push_back(seconds_between(last_token, now));
  } else {
    record.time_to_first_token = record.end_to_end;
  }
  started = true;
  last_token = now;
  return true;
}

void Flight::fail(std::string kind, std::string message) {
  if (!record.ok()) return;
  record.error_kind = std::move(kind);
  record.error_message = std::move(message);
}

RequestRecord Flight::end(const Result<http::Response>& response) {
  if (!response.ok()) {
    bool late = response.status().code() == StatusCode::kDeadlineExceeded;
    fail(late ? "timeout" : (started ? "cut_off" : "connection"), response.status().message());
  } else if (response->status < 200 || response->status >= 300) {
    ServerError error = read_server_error(*response);
    std::string kind = format("http_{}", response->status);
    fail(error.code.empty() ? kind : kind + " " + error.code, error.message);
  } else if (!done) {
    fail("cut_off", "the stream ended without [DONE]");
  } else if (!has_usage) {
    fail("no_usage", "the stream says no usage: does the server know stream_options.include_usage?");
  } else if (record.output_tokens == 0) {
    fail("no_tokens", "the answer is empty");
  }
  // Tokens without any text of their own, special ones: they came by the end.
  if (record.ok() && !started) record.time_to_first_token = record.end_to_end;
  return std::move(record);
}

class LoadGenerator {
 public:
  LoadGenerator(const ServerAccess& server,
                const LoadOptions& options,
                const std::vector<std::string>& bodies)
      : server_(server), options_(options), bodies_(bodies), client_(server.client) {}

  LoadRun run(const std::function<bool(const LoadProgress&)>& on_progress);

 private:
  void arrive(size_t index);
  void send(size_t index);
  void end(Flight& flight, const Result<http::Response>& response);
  LoadProgress progress() const;

  const ServerAccess& server_;
  const LoadOptions& options_;
  const std::vector<std::string>& bodies_;
  std::deque<size_t> waiting_;  // arrived, and max_concurrency are running
  size_t running_ = 0;
  size_t num_sent_ = 0;
  size_t num_failed_ = 0;
  bool interrupted_ = false;
  TimePoint begin_;
  TimePoint last_end_;
  LoadRun result_;
  http::AsyncClient client_;  // last: its callbacks use the others
};

void LoadGenerator::arrive(size_t index) {
  bool full = options_.max_concurrency > 0 && running_ >= static_cast<size_t>(options_.max_concurrency);
  if (full) {
    waiting_.push_back(index);
  } else {
    send(index);
  }
}

void LoadGenerator::send(size_t index) {
  ++num_sent_;
  ++running_;
  result_.peak_concurrency = std::max(result_.peak_concurrency, running_);
  auto flight = std::make_shared<Flight>();
  flight->sent = Clock::now();
  client_.start(
      request_to(server_, options_.path, bodies_[index]),
      Deadline::after_seconds(options_.request_timeout_seconds),
      [flight](std::string_view piece) { return flight->on_data(piece); },
      [this, flight](const Result<http::Response>& response) { end(*flight, response); });
}

void LoadGenerator::end(Flight& flight, const Result<http::Response>& response) {
  --running_;
  if (response.status().code() == StatusCode::kCancelled) {
    ++result_.given_up;
    return;
  }
  last_end_ = Clock::now();
  result_.records.push_back(flight.end(response));
  if (!result_.records.back().ok()) ++num_failed_;
  if (waiting_.empty() || interrupted_) return;
  size_t next = waiting_.front();
  waiting_.pop_front();
  send(next);
}

LoadProgress LoadGenerator::progress() const {
  return {.total = bodies_.size(),
          .ended = result_.records.size(),
          .failed = num_failed_,
          .running = running_,
          .seconds = seconds_between(begin_, Clock::now())};
}

LoadRun LoadGenerator::run(const std::function<bool(const LoadProgress&)>& on_progress) {
  std::vector<double> times =
      arrival_times(bodies_.size(), options_.request_rate, options_.burstiness, options_.seed);
  begin_ = last_end_ = Clock::now();
  for (size_t i = 0; i < times.size(); ++i) {
    client_.call_at(begin_ + duration_of(times[i]), [this, i] { arrive(i); });
  }
  while (!client_.run(Deadline::after(kProgressEvery))) {
    if (on_progress(progress()) || interrupted_) continue;
    interrupted_ = true;
    client_.cancel_all();
  }
  on_progress(progress());
  result_.seconds = seconds_between(begin_, last_end_);
  result_.not_sent = bodies_.size() - num_sent_;
  return std::move(result_);
}

}  // namespace

std::vector<double> arrival_times(size_t count, double request_rate, double burstiness, uint64_t seed) {
  std::vector<double> times(count, 0.0);
  if (std::isinf(request_rate)) return times;
  std::mt19937_64 random(seed);
  // A mean of 1 / request_rate, whatever the shape.
  std::gamma_distribution<double> interval(burstiness, 1 / (request_rate * burstiness));
  for (size_t i = 1; i < count; ++i) times[i] = times[i - 1] + interval(random);
  return times;
}

LoadRun run_load(const ServerAccess& server,
                 const LoadOptions& options,
                 const std::vector<std::string>& bodies,
                 const std::function<bool(const LoadProgress&)>& on_progress) {
  return LoadGenerator(server, options, bodies).run(on_progress);
}

}  // namespace llm_dist::launch
