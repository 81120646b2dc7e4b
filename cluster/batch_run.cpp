#include "cluster/batch_run.h"

#include <algorithm>
#include <nlohmann/json.hpp>
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
  run->start_threads();
  return run;
}

BatchRun::~BatchRun() { stop(); }

Status BatchRun::find_items() {
  ASSIGN_OR_RETURN(std::vector<ItemRecord> marks, parts_.store.batches().item_marks(parts_.job));
  std::unordered_map<int64_t, ItemRecord> known;
  for (ItemRecord& mark : marks) known.emplace(mark.number, std::move(mark));
  std::deque<Item> fresh;
  int64_t count = 0;
  while (true) {
    ASSIGN_OR_RETURN(std::optional<ItemPlace> place, input_.next());
    if (!place) break;
    ++count;
    auto mark = known.find(place->number);
    if (mark == known.end()) {
      fresh.push_back({.place = *place});
    } else if (mark->second.outcome == ItemOutcome::kOpen) {
      ready_.push_back({.place = *place, .deaths = mark->second.deaths});
    }
  }
  if (count != parts_.total) {
    return data_loss(format("the input file {} has {} of {} items", parts_.input_path, count, parts_.total));
  }
  ready_.insert(ready_.end(), fresh.begin(), fresh.end());
  num_open_ = ready_.size();
  return ok_status();
}

void BatchRun::start_threads() {
  size_t count = std::min(num_open_, static_cast<size_t>(std::max(1, parts_.options.concurrency)));
  for (size_t i = 0; i < count; ++i) clients_.push_back(parts_.connect());
  for (auto& client : clients_) {
    threads_.push_back(parts_.threads->start([this, &client] { work(*client); }));
  }
  if (count == 0) parts_.on_done();
}

void BatchRun::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_->notify_all();
  for (auto& client : clients_) client->abort();
  for (auto& thread : threads_) thread->join();
  threads_.clear();
}

std::vector<CountDeaths::Item> BatchRun::in_flight() {
  std::lock_guard lock(mutex_);
  std::vector<CountDeaths::Item> items;
  for (const auto& [number, item] : with_engine_) {
    Result<std::string> line = input_.read(item.place);
    Result<BatchRequest> request =
        line.ok() ? parse_batch_line(line.value(), parts_.endpoint) : Result<BatchRequest>(line.status());
    if (!request.ok()) continue;
    const std::string& custom_id = request.value().custom_id;
    std::string message =
        format("the engine died {} times with this request in flight: it is not tried again",
               parts_.options.max_deaths);
    items.push_back({.number = number,
                     .custom_id = custom_id,
                     .line = error_line(parts_.job, number, custom_id, "quarantined", message)});
  }
  return items;
}

void BatchRun::work(ItemClient& client) {
  while (std::optional<Item> item = take()) {
    if (!execute(client, *item)) return;
  }
}

// Nothing: there is no more to do, for this thread.
std::optional<BatchRun::Item> BatchRun::take() {
  std::unique_lock lock(mutex_);
  while (!stopping_ && num_open_ > 0) {
    TimePoint now = parts_.threads->now();
    TimePoint start = next_start();
    bool due = !waiting_.empty() && waiting_.begin()->first <= now;
    // Nobody goes ahead of one that has to run alone, or it would wait for ever.
    bool must_wait =
        start <= now && num_running_ > 0 && (due ? waiting_.begin()->second : ready_.front()).deaths > 0;
    if (start == TimePoint::max() || must_wait) {
      changed_->wait(lock);
    } else if (start > now) {
      changed_->wait_until(lock, start);
    } else {
      Item item = pop_next(due);
      ++num_running_;
      runs_alone_ = item.deaths > 0;
      with_engine_.insert_or_assign(item.place.number, item);
      return item;
    }
  }
  return std::nullopt;
}

// When the next item may be sent; max: not before another one is done.
TimePoint BatchRun::next_start() const {
  // After an outage one item goes first, to see whether it is over.
  if (num_running_ > 0 && (runs_alone_ || num_outages_ > 0)) return TimePoint::max();
  TimePoint start = ready_.empty() ? TimePoint::max() : TimePoint::min();
  if (!waiting_.empty()) start = std::min(start, waiting_.begin()->first);
  return std::max(start, hold_until_);
}

BatchRun::Item BatchRun::pop_next(bool due) {
  Item item = due ? waiting_.begin()->second : ready_.front();
  if (due) {
    waiting_.erase(waiting_.begin());
  } else {
    ready_.pop_front();
  }
  return item;
}

// False: this run records nothing any more.
bool BatchRun::execute(ItemClient& client, Item item) {
  std::unique_lock lock(mutex_);
  Result<std::string> line = input_.read(item.place);
  lock.unlock();
  Result<BatchRequest> request =
      line.ok() ? parse_batch_line(line.value(), parts_.endpoint) : Result<BatchRequest>(line.status());
  if (!request.ok()) {
    log_error("{}: {}", batch_name(parts_.job), request.status().message());
    put_back(item, {.verdict = Verdict::kWait, .left_engine = true});
    return true;
  }
  Answer answer = ask(client, item, request.value());
  if (answer.verdict == Verdict::kTryAgain || answer.verdict == Verdict::kWait) {
    put_back(item, answer);
    return true;
  }
  lock.lock();
  with_engine_.erase(item.place.number);
  lock.unlock();
  bool recorded = record(item, request.value().custom_id, answer);
  if (recorded) finished(item);
  return recorded;
}

BatchRun::Answer BatchRun::ask(ItemClient& client, const Item& item, const BatchRequest& request) {
  Result<http::Response> response = client.request(
      {.method = "POST",
       .url = parts_.replica_url + parts_.endpoint,
       .headers = {{"Content-Type", "application/json"}, {"Authorization", "Bearer " + parts_.api_key}},
       .body = request.body},
      Deadline::at(parts_.threads->now() + parts_.options.item_timeout));
  if (response.ok()) return judge(item, request, response.value());
  bool late = response.status().code() == StatusCode::kDeadlineExceeded;
  bool unreadable = response.status().code() == StatusCode::kInternal;
  if (!late && !unreadable) return {.verdict = Verdict::kWait, .left_engine = false};
  if (item.tries + 1 < parts_.options.max_tries) return {.verdict = Verdict::kTryAgain, .left_engine = true};
  std::string message = format("{} times: {}",
                               parts_.options.max_tries,
                               late ? "no answer in time" : "an answer of more than 16 MiB, or none of HTTP");
  const char* code = late ? "timeout" : "bad_answer";
  return {.verdict = Verdict::kFailed,
          .left_engine = true,
          .line = error_line(parts_.job, item.place.number, request.custom_id, code, message)};
}

BatchRun::Answer BatchRun::judge(const Item& item,
                                 const BatchRequest& request,
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
                              request.custom_id,
                              status,
                              request_id == nullptr ? "" : *request_id,
                              response.body)};
}

bool BatchRun::record(const Item& item, const std::string& custom_id, const Answer& answer) {
  while (true) {
    Outcome outcome = parts_.commit(RecordItem{.job = parts_.job,
                                               .attempt = parts_.attempt,
                                               .number = item.place.number,
                                               .custom_id = custom_id,
                                               .completed = answer.verdict == Verdict::kCompleted,
                                               .line = answer.line});
    if (outcome.ok()) return true;
    StatusCode code = outcome.status().code();
    bool later = code == StatusCode::kUnavailable || code == StatusCode::kResourceExhausted;
    if (!later) {
      // The attempt is over, or another coordinator has the store: theirs counts.
      log_debug("{} item {} is not recorded: {}",
                batch_name(parts_.job),
                item.place.number,
                outcome.status().message());
      return false;
    }
    if (!pause(kCommitPause)) return false;
  }
}

// To be tried again, on this attempt or the next.
void BatchRun::put_back(Item item, const Answer& answer) {
  {
    std::lock_guard lock(mutex_);
    TimePoint now = parts_.threads->now();
    if (answer.left_engine) with_engine_.erase(item.place.number);
    TimePoint again = now;
    if (answer.verdict == Verdict::kTryAgain) {
      num_outages_ = 0;
      again += jittered_backoff(++item.tries);
    } else if (now >= hold_until_) {
      // Those that fail together are one outage.
      hold_until_ = now + jittered_backoff(++num_outages_);
    }
    waiting_.emplace(again, item);
    --num_running_;
    if (item.deaths > 0) runs_alone_ = false;
  }
  changed_->notify_all();
}

Duration BatchRun::jittered_backoff(int num_failures) {
  Duration wait = parts_.options.backoff;
  for (int i = 1; i < num_failures && wait < parts_.options.max_backoff; ++i) wait *= 2;
  wait = std::min(wait, parts_.options.max_backoff);
  std::uniform_real_distribution<double> jitter(0.5, 1.5);
  return std::chrono::duration_cast<Duration>(wait * jitter(random_));
}

void BatchRun::finished(const Item& item) {
  bool done = false;
  {
    std::lock_guard lock(mutex_);
    num_outages_ = 0;
    --num_running_;
    if (item.deaths > 0) runs_alone_ = false;
    done = --num_open_ == 0;
  }
  changed_->notify_all();
  if (done) parts_.on_done();
}

// False: the run is being stopped.
bool BatchRun::pause(Duration time) {
  std::unique_lock lock(mutex_);
  return !changed_->wait_for(lock, parts_.threads->now() + time, [this] { return stopping_; });
}

}  // namespace llm_dist::cluster
