#include "cluster/batch_run.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <unordered_map>

#include "cluster/batch_output.h"
#include "src/base/format.h"
#include "src/base/log.h"

namespace llm_dist::cluster {
namespace {

constexpr auto kCommitPause = std::chrono::seconds(1);  // while the store takes nothing

std::string error_code_of(const http::Response& response) {
  nlohmann::json body = nlohmann::json::parse(response.body, nullptr, false);
  if (!body.is_object() || !body.contains("error") || !body["error"].is_object()) return "";
  auto code = body["error"].find("code");
  return code != body["error"].end() && code->is_string() ? code->get<std::string>() : "";
}

// What says nothing about the item: it was not begun.
bool is_turned_away(int status) {
  constexpr int kStatuses[] = {401, 403, 429, 502, 503, 504};
  return std::find(std::begin(kStatuses), std::end(kStatuses), status) != std::end(kStatuses);
}

// The engine had it and is failing: whether the item is why, its death will tell.
bool is_engine_failure(const std::string& code) {
  return code == "engine_failed" || code == "engine_error" || code == "hung";
}

}  // namespace

Result<std::unique_ptr<BatchRun>> BatchRun::start(Parts parts) {
  ASSIGN_OR_RETURN(BatchInput input, BatchInput::open(parts.input_path));
  std::unique_ptr<BatchRun> run(new BatchRun(std::move(parts), std::move(input)));
  Status found = run->find_items();
  // It was without fault when the batch was made.
  if (found.code() == StatusCode::kInvalidArgument) return data_loss(found.message());
  RETURN_IF_ERROR(found);
  if (run->num_open_ == 0) run->parts_.on_done();
  return run;
}

BatchRun::~BatchRun() {
  for (auto& [attempt, lane] : lanes_) stop(*lane);
}

Status BatchRun::find_items() {
  ASSIGN_OR_RETURN(BatchSummary input, check_batch_input(parts_.input_path, parts_.endpoint));
  if (input.num_items != parts_.total) {
    return data_loss(
        format("the input file {} has {} of {} items", parts_.input_path, input.num_items, parts_.total));
  }
  ASSIGN_OR_RETURN(std::vector<ItemRecord> marks, parts_.store.batches().item_marks(parts_.job));
  std::unordered_map<int64_t, ItemRecord> known;
  for (ItemRecord& mark : marks) known.emplace(mark.number, std::move(mark));
  std::deque<Item> fresh;
  while (true) {
    ASSIGN_OR_RETURN(std::optional<ItemPlace> place, input_.next());
    if (!place) break;
    auto mark = known.find(place->number);
    if (mark == known.end()) {
      fresh.push_back({.place = *place});
    } else if (mark->second.outcome == ItemOutcome::kOpen) {
      ready_.push_back({.place = *place, .deaths = mark->second.deaths});
    }
  }
  ready_.insert(ready_.end(), fresh.begin(), fresh.end());
  num_open_ = ready_.size();
  return ok_status();
}

Status BatchRun::input_status() {
  std::lock_guard lock(mutex_);
  return input_status_;
}

Result<BatchRequest> BatchRun::read_request(const ItemPlace& place) {
  Result<std::string> line = [&] {
    std::lock_guard lock(input_mutex_);
    return input_.read(place);
  }();
  if (!line.ok()) return line.status();
  Result<BatchRequest> request = parse_batch_line(line.value(), parts_.endpoint);
  if (request.ok()) return request;
  return data_loss(format("line {}: {}", place.number, request.status().message()));
}

bool BatchRun::add(const ReplicaAttempt& attempt, const std::string& url, const std::string& api_key) {
  auto made = std::make_unique<Lane>(
      Lane{.attempt = attempt, .url = url, .api_key = api_key, .client = parts_.connect()});
  Lane& lane = *made;
  {
    // Before its thread runs: nobody forgets to wake it.
    std::lock_guard lock(mutex_);
    lanes_[attempt] = std::move(made);
  }
  try {
    lane.thread = parts_.threads->start([this, &lane] { work(lane); });
  } catch (const std::system_error& error) {
    if (!std::exchange(told_of_threads_, true)) {
      log_warning("{}: no thread is to be had for {} attempt {}, which gets no items until there is one: {}",
                  batch_name(parts_.job),
                  job_name(attempt.job),
                  attempt.number,
                  error.code().message());
    }
    std::lock_guard lock(mutex_);
    lanes_.erase(attempt);
    return false;
  }
  told_of_threads_ = false;
  return true;
}

std::vector<ReplicaAttempt> BatchRun::replicas() const {
  std::vector<ReplicaAttempt> attempts;
  attempts.reserve(lanes_.size());
  for (const auto& [attempt, lane] : lanes_) attempts.push_back(attempt);
  return attempts;
}

void BatchRun::stop(Lane& lane) {
  if (!lane.thread) return;
  {
    std::lock_guard lock(mutex_);
    lane.ending = true;
  }
  lane.client->abort();
  lane.thread->join();
  lane.thread.reset();
}

// What all of them share has changed.
void BatchRun::wake_lanes() {
  std::lock_guard lock(mutex_);
  for (const auto& [attempt, lane] : lanes_) lane->client->wake();
}

Status BatchRun::remove(const ReplicaAttempt& attempt, bool died) {
  Lane& lane = *lanes_.at(attempt);
  stop(lane);
  CountDeaths deaths = died ? deaths_on(lane) : CountDeaths();
  if (!deaths.items.empty()) {
    log_warning("{}: the engine of {} attempt {} died with {} requests in flight",
                batch_name(parts_.job),
                job_name(attempt.job),
                attempt.number,
                deaths.items.size());
    // A batch that is over has no use for it.
    Outcome counted = parts_.commit(std::move(deaths));
    if (!counted.ok() && counted.status().code() != StatusCode::kFailedPrecondition) return counted.status();
  }
  return_items(lane, died);
  std::lock_guard lock(mutex_);
  lanes_.erase(attempt);
  return ok_status();
}

// Of a lane that is stopped: what the engine had when it was cut off, and what it never answered.
CountDeaths BatchRun::deaths_on(const Lane& lane) {
  CountDeaths deaths{.job = parts_.job,
                     .attempt = lane.attempt.number,
                     .max_deaths = parts_.options.max_deaths,
                     .items = {},
                     .replica = replica_of(lane)};
  std::string message = format("the engine died {} times with this request in flight: it is not tried again",
                               parts_.options.max_deaths);
  for (const auto& [number, item] : lane.with_engine) {
    Result<BatchRequest> request = read_request(item.place);
    if (!request.ok()) {
      input_lost(request.status());
      continue;
    }
    const std::string& custom_id = request.value().custom_id;
    deaths.items.push_back({.number = number,
                            .custom_id = custom_id,
                            .line = error_line(parts_.job, number, custom_id, "quarantined", message)});
  }
  return deaths;
}

void BatchRun::return_items(Lane& lane, bool died) {
  bool done = false;
  {
    std::lock_guard lock(mutex_);
    for (auto& [number, item] : lane.with_engine) {
      if (died) ++item.deaths;
      if (item.deaths < parts_.options.max_deaths) {
        ready_.push_front(item);
      } else {
        done = --num_open_ == 0;
      }
    }
    lane.with_engine.clear();
    lane.held.clear();
  }
  wake_lanes();
  if (done) parts_.on_done();
}

void BatchRun::work(Lane& lane) {
  while (true) {
    TimePoint until = see_to_records(lane);
    until = std::min(until, send_items(lane));
    {
      std::lock_guard lock(mutex_);
      if (lane.num_running == 0 && !takes_more(lane)) return;
    }
    lane.client->wait(until);
  }
}

bool BatchRun::takes_more(const Lane& lane) const {
  return !lane.ending && !lane.refused && num_open_ > 0 && input_status_.ok();
}

// All that may be sent now; when to look again, unless something changes before.
TimePoint BatchRun::send_items(Lane& lane) {
  TimePoint until = TimePoint::max();
  while (std::optional<Item> item = take(lane, until)) send(lane, *item);
  return until;
}

// Nothing: not before `until`, or before something changes.
std::optional<BatchRun::Item> BatchRun::take(Lane& lane, TimePoint& until) {
  std::lock_guard lock(mutex_);
  if (!takes_more(lane) || lane.num_running >= std::max(1, parts_.options.concurrency)) return std::nullopt;
  TimePoint now = parts_.threads->now();
  Turn turn = next_turn(lane, now);
  if (turn.start > now) {
    until = turn.start;
    return std::nullopt;
  }
  // Nobody goes ahead of one that has to run alone, or it would wait for ever.
  if (lane.num_running > 0 && must_be_alone(turn)) return std::nullopt;
  Item item = pop(turn);
  ++lane.num_running;
  lane.runs_alone = item.deaths > 0;
  lane.with_engine.insert_or_assign(item.place.number, item);
  return item;
}

BatchRun::Turn BatchRun::next_turn(Lane& lane, TimePoint now) {
  // After an outage one item goes first, to see whether it is over.
  if (lane.num_running > 0 && (lane.runs_alone || lane.num_outages > 0)) return {TimePoint::max(), nullptr};
  Turn next{ready_.empty() ? TimePoint::max() : TimePoint::min(), nullptr};
  for (Waiting* waiting : {&waiting_, &lane.held}) {
    if (waiting->empty()) continue;
    TimePoint due = waiting->begin()->first;
    // What is due goes before what is ready.
    if (due <= now || due < next.start) next = {due, waiting};
  }
  next.start = std::max(next.start, lane.hold_until);
  return next;
}

bool BatchRun::must_be_alone(const Turn& turn) const {
  return (turn.from != nullptr ? turn.from->begin()->second : ready_.front()).deaths > 0;
}

BatchRun::Item BatchRun::pop(const Turn& turn) {
  Item item = turn.from != nullptr ? turn.from->begin()->second : ready_.front();
  if (turn.from != nullptr) {
    turn.from->erase(turn.from->begin());
  } else {
    ready_.pop_front();
  }
  return item;
}

void BatchRun::send(Lane& lane, const Item& item) {
  Result<BatchRequest> request = read_request(item.place);
  if (!request.ok()) {
    input_lost(request.status());
    return let_go(lane, item);
  }
  lane.client->start(
      {.method = "POST",
       .url = lane.url + parts_.endpoint,
       .headers = {{"Content-Type", "application/json"}, {"Authorization", "Bearer " + lane.api_key}},
       .body = std::move(request->body)},
      Deadline::at(parts_.threads->now() + parts_.options.item_timeout),
      [this, &lane, item, custom_id = request->custom_id](const Result<http::Response>& response) {
        answered(lane, item, custom_id, judge(item, custom_id, response));
      });
}

void BatchRun::answered(Lane& lane, const Item& item, const std::string& custom_id, Answer answer) {
  if (answer.verdict == Verdict::kTryAgain || answer.verdict == Verdict::kWait) {
    return put_back(lane, item, answer);
  }
  {
    std::lock_guard lock(mutex_);
    lane.with_engine.erase(item.place.number);
  }
  write(lane,
        {.item = item,
         .record = {.job = parts_.job,
                    .attempt = lane.attempt.number,
                    .number = item.place.number,
                    .custom_id = custom_id,
                    .completed = answer.verdict == Verdict::kCompleted,
                    .line = std::move(answer.line),
                    .replica = replica_of(lane)}});
}

BatchRun::Answer BatchRun::judge(const Item& item,
                                 const std::string& custom_id,
                                 const Result<http::Response>& response) const {
  return response.ok() ? judge_response(item, custom_id, response.value())
                       : judge_error(item, custom_id, response.status().code());
}

BatchRun::Answer BatchRun::judge_error(const Item& item,
                                       const std::string& custom_id,
                                       StatusCode code) const {
  bool late = code == StatusCode::kDeadlineExceeded;
  bool unreadable = code == StatusCode::kInternal;
  if (!late && !unreadable) return {.verdict = Verdict::kWait, .left_engine = false};
  if (item.tries + 1 < parts_.options.max_tries) return {.verdict = Verdict::kTryAgain, .left_engine = true};
  std::string message = format("{} times: {}",
                               parts_.options.max_tries,
                               late ? "no answer in time" : "an answer of more than 16 MiB, or none of HTTP");
  const char* error = late ? "timeout" : "bad_answer";
  return {.verdict = Verdict::kFailed,
          .left_engine = true,
          .line = error_line(parts_.job, item.place.number, custom_id, error, message)};
}

BatchRun::Answer BatchRun::judge_response(const Item& item,
                                          const std::string& custom_id,
                                          const http::Response& response) const {
  int status = response.status;
  if (status >= 500) {
    bool suspect = is_engine_failure(error_code_of(response));
    if (is_turned_away(status)) return {.verdict = Verdict::kWait, .left_engine = !suspect};
    if (item.tries + 1 < parts_.options.max_tries) {
      return {.verdict = Verdict::kTryAgain, .left_engine = !suspect};
    }
  } else if (is_turned_away(status)) {
    return {.verdict = Verdict::kWait, .left_engine = true};
  }
  const std::string* request_id = response.headers.find("X-Request-Id");
  return {.verdict = status == 200 ? Verdict::kCompleted : Verdict::kFailed,
          .left_engine = true,
          .line = answer_line(parts_.job,
                              item.place.number,
                              custom_id,
                              status,
                              request_id == nullptr ? "" : *request_id,
                              response.body)};
}

// Many at a time share one sync.
void BatchRun::write(Lane& lane, Settled settled) {
  const int64_t number = settled.item.place.number;
  RecordItem record = settled.record;
  lane.writing.emplace(number, std::move(settled));
  parts_.enqueue(std::move(record), [this, &lane, number](const Outcome& outcome) {
    // Together: as soon as the lane knows, it may be over.
    std::lock_guard lock(mutex_);
    lane.written.emplace_back(number, outcome);
    lane.client->wake();
  });
}

// What the store has said, and what it is to be asked again. When to look again.
TimePoint BatchRun::see_to_records(Lane& lane) {
  std::vector<std::pair<int64_t, Outcome>> told;
  bool ending = false;
  {
    std::lock_guard lock(mutex_);
    told.swap(lane.written);
    ending = lane.ending;
  }
  for (const auto& [number, outcome] : told) {
    written(lane, std::move(lane.writing.extract(number).mapped()), outcome);
  }
  while (!lane.unwritten.empty() && (ending || lane.unwritten.begin()->first <= parts_.threads->now())) {
    Settled settled = std::move(lane.unwritten.extract(lane.unwritten.begin()).mapped());
    ending ? let_go(lane, settled.item) : write(lane, std::move(settled));
  }
  return lane.unwritten.empty() ? TimePoint::max() : lane.unwritten.begin()->first;
}

void BatchRun::written(Lane& lane, Settled settled, const Outcome& outcome) {
  if (outcome.ok()) return finished(lane, settled.item);
  StatusCode code = outcome.status().code();
  if (code == StatusCode::kUnavailable || code == StatusCode::kResourceExhausted) {
    lane.unwritten.emplace(parts_.threads->now() + kCommitPause, std::move(settled));
    return;
  }
  // The attempt is over, or another coordinator has the store: theirs counts.
  log_debug("{} item {} is not recorded: {}",
            batch_name(parts_.job),
            settled.item.place.number,
            outcome.status().message());
  {
    std::lock_guard lock(mutex_);
    lane.refused = true;
  }
  let_go(lane, settled.item);
}

// To be tried again, in this run or another coordinator's.
void BatchRun::put_back(Lane& lane, Item item, const Answer& answer) {
  {
    std::lock_guard lock(mutex_);
    TimePoint now = parts_.threads->now();
    TimePoint again = now;
    if (answer.verdict == Verdict::kTryAgain) {
      lane.num_outages = 0;
      again += jittered_backoff(++item.tries);
    } else if (now >= lane.hold_until) {
      // Those that fail together are one outage.
      lane.hold_until = now + jittered_backoff(++lane.num_outages);
    }
    if (answer.left_engine) {
      lane.with_engine.erase(item.place.number);
      waiting_.emplace(again, item);
    } else {
      // What may have killed this engine is not to kill another one before that is known.
      lane.with_engine.insert_or_assign(item.place.number, item);
      lane.held.emplace(again, item);
    }
    --lane.num_running;
    if (item.deaths > 0) lane.runs_alone = false;
  }
  if (answer.left_engine) wake_lanes();
}

Duration BatchRun::jittered_backoff(int num_failures) {
  Duration wait = parts_.options.backoff;
  for (int i = 1; i < num_failures && wait < parts_.options.max_backoff; ++i) wait *= 2;
  wait = std::min(wait, parts_.options.max_backoff);
  std::uniform_real_distribution<double> jitter(0.5, 1.5);
  return std::chrono::duration_cast<Duration>(wait * jitter(random_));
}

// Not with the engine any more, and not recorded by this lane: another one may.
void BatchRun::let_go(Lane& lane, const Item& item) {
  {
    std::lock_guard lock(mutex_);
    lane.with_engine.erase(item.place.number);
    --lane.num_running;
    ready_.push_front(item);
  }
  wake_lanes();
}

// The batch cannot be completed: who looks after it ends it.
void BatchRun::input_lost(const Status& why) {
  log_error("{}: {}", batch_name(parts_.job), why.message());
  {
    std::lock_guard lock(mutex_);
    input_status_ = why;
  }
  wake_lanes();
  parts_.on_done();
}

void BatchRun::finished(Lane& lane, const Item& item) {
  bool done = false;
  {
    std::lock_guard lock(mutex_);
    lane.num_outages = 0;
    --lane.num_running;
    if (item.deaths > 0) lane.runs_alone = false;
    done = --num_open_ == 0;
  }
  if (!done) return;
  wake_lanes();
  parts_.on_done();
}

}  // namespace llm_dist::cluster
