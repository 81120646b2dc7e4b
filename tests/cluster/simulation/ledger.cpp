#include "tests/cluster/simulation/ledger.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cluster/job_spec.h"
#include "tests/cluster/file_text.h"

namespace llm_dist::cluster::simulation {
namespace {

constexpr int kAll = 1'000'000;

bool same(const Event& a, const Event& b) {
  return a.number == b.number && a.from == b.from && a.to == b.to && a.intent == b.intent &&
         a.reason == b.reason && a.attempt == b.attempt && a.at_us == b.at_us && a.epoch == b.epoch;
}

bool may_have_processes(JobState state) {
  using enum JobState;
  return state == kStarting || state == kRunning || state == kCancelling || state == kFinalizing;
}

}  // namespace

int64_t token_of(const Job& job) {
  JobSpec spec = read_job_spec(job.spec);
  return job.kind == JobKind::kBench ? spec.input_len : spec.max_model_len;
}

void Ledger::before(const CommandBody& body) {
  // Whether it will be carried out is not known if this is the last that its coordinator does.
  if (const auto* remove = std::get_if<RemoveJob>(&body)) removed_.insert(remove->job);
}

void Ledger::after(Store& store, const Pending& pending) {
  if (!pending.outcome.ok()) return;
  const CommandBody& body = pending.command.body;
  const Written& written = pending.outcome.value();
  if (std::holds_alternative<AddFile>(body) || std::holds_alternative<DeleteFile>(body)) return;
  if (std::holds_alternative<RemoveJob>(body)) {
    if (!machine_.living(written.id).empty()) world_.violate("a job that has processes was removed");
    return;
  }
  if (std::holds_alternative<SubmitJob>(body)) {
    world_.note("{} {}", job_name(written.id), written.replayed ? "was made before" : "is made");
    if (written.replayed && !known_.contains(written.id)) world_.violate("an answer about no job was given");
    if (!written.replayed && written.id <= newest_) world_.violate("an id was used twice");
  }
  if (const auto* record = std::get_if<RecordItem>(&body)) recorded(*record);
  if (const auto* deaths = std::get_if<CountDeaths>(&body)) {
    world_.note(
        "{}: attempt {} died with {} items", batch_name(deaths->job), deaths->attempt, deaths->items.size());
  }
  learn(store, written.id);
  if (const auto* close = std::get_if<CloseBatch>(&body)) {
    world_.note("{} is closed", batch_name(close->job));
    check_items(store, close->job);
  }
}

void Ledger::recorded(const RecordItem& record) {
  Known& known = known_[record.job];
  if (!known.recorded.insert(record.number).second) {
    world_.violate(format("item {} of {} was recorded twice", record.number, batch_name(record.job)));
  }
  ++world_.result.num_items;
  world_.recorded.insert(record.custom_id);
  world_.note(
      "item {} of {} is recorded by attempt {}", record.number, batch_name(record.job), record.attempt);
  if (!record.completed) return;
  JobId replica = record.replica == 0 ? record.job : record.replica;
  const Machine::Process* process = machine_.find(replica, record.attempt);
  // The prompt is the item's name.
  if (process == nullptr || !process->answered.contains(record.custom_id)) {
    world_.violate(format("{} has an answer that its engine never gave", record.custom_id));
  }
}

void Ledger::learn(Store& store, JobId id) {
  Result<Job> job = store.job(id);
  if (!job.ok()) return world_.violate(format("lost: {}", job_name(id)));
  if (!known_.contains(id)) check_new(job.value());
  Known& known = known_[id];
  auto last = static_cast<int64_t>(known.events.size());
  if (job.value().version < last) world_.violate(format("{} went back", job_name(id)));
  if (job.value().version == last) return;
  Result<std::vector<Event>> events = store.events(id, last, kAll);
  if (!events.ok()) return world_.violate("events cannot be read");
  check_events(known, job.value(), events.value());
  check_attempts(store, job.value());
}

void Ledger::check_new(const Job& job) {
  known_[job.id].kind = job.kind;
  newest_ = std::max(newest_, job.id);
  if (job.retry_of != 0) {
    if (++retries_made_[job.retry_of] > retries_asked_[job.retry_of]) {
      world_.violate(format("{} was retried more often than asked for", job_name(job.retry_of)));
    }
    return;
  }
  // Made with its batch, which the request asked for.
  if (job.replica_of != 0) return;
  auto [entry, is_new] = by_token_.emplace(token_of(job), job.id);
  if (is_new || removed_.contains(entry->second)) {
    entry->second = job.id;
    return;
  }
  world_.violate(format("one request made {} and {}", job_name(entry->second), job_name(job.id)));
}

void Ledger::check_events(Known& known, const Job& job, const std::vector<Event>& events) {
  for (const Event& event : events) {
    world_.note(
        "{} {} {} ({}) attempt {}", job_name(job.id), event.number, event.to, event.reason, event.attempt);
    std::optional<JobState> before;
    if (!known.events.empty()) before = known.events.back().to;
    bool numbered = event.number == static_cast<int64_t>(known.events.size()) + 1;
    bool follows = event.from == before && (!before || *before == event.to || may_become(*before, event.to));
    bool begins = before || event.to == JobState::kQueued;
    bool immutable = before && is_terminal(*before);
    if (!numbered || !follows || !begins || immutable) {
      world_.violate(format("{} has an event {} that may not follow", job_name(job.id), event.number));
    }
    known.events.push_back(event);
  }
  if (known.events.back().to != job.state || known.events.back().number != job.version) {
    world_.violate(format("{} has changed without an event", job_name(job.id)));
  }
  if (is_terminal(job.state)) ++world_.result.num_ended;
}

// What lives belongs to the attempt that is written down, and to a job that may have one.
void Ledger::check_attempts(Store& store, const Job& job) {
  std::vector<const Machine::Process*> living = machine_.living(job.id);
  if (!living.empty() && !may_have_processes(job.state)) {
    world_.violate(
        format("{} is {}, and its process {} lives", job_name(job.id), job.state, living[0]->number));
  }
  Result<std::vector<Attempt>> attempts = store.attempts(job.id);
  if (!attempts.ok()) return world_.violate("attempts cannot be read");
  if (static_cast<int64_t>(attempts.value().size()) != job.attempt) world_.violate("an attempt is missing");
  for (const Attempt& attempt : attempts.value()) {
    bool ended = attempt.state == AttemptState::kEnded;
    if (!ended && attempt.number != job.attempt) world_.violate("an older attempt has not ended");
    const Machine::Process* process = machine_.find(job.id, attempt.number);
    if (ended && process != nullptr && process->ranks) {
      world_.violate(format("process {} outlives its attempt", process->number));
    }
    if (!attempt.endpoint.empty() && (process == nullptr || process->url != attempt.endpoint)) {
      world_.violate(format("{} serves at an endpoint of another attempt", job_name(job.id)));
    }
  }
}

void Ledger::check_items(Store& store, JobId id) {
  Known& known = known_[id];
  Result<Batch> batch = store.batches().batch(id);
  Result<std::vector<ItemRecord>> items = store.batches().items(id, 0, SIZE_MAX);
  if (!batch.ok() || !items.ok()) return world_.violate(format("lost: the items of {}", batch_name(id)));
  known.total = batch.value().total;
  std::set<int64_t> found;
  for (const ItemRecord& item : items.value()) found.insert(item.number);
  for (int64_t number : known.recorded) {
    if (!found.contains(number)) world_.violate(format("lost: item {} of {}", number, batch_name(id)));
  }
  known.recorded = found;
  const Batch& now = batch.value();
  auto counted = now.completed + now.failed;
  auto num_found = static_cast<int64_t>(found.size());
  // Items that expired are counted, and stand in the error file alone.
  if (now.closed ? counted < num_found : counted != num_found) {
    world_.violate(format("{} counts {} items and has {}", batch_name(id), counted, num_found));
  }
  if (now.closed) check_files(store, now);
  JobState state = known.events.back().to;
  bool whole = state == JobState::kSucceeded || state == JobState::kExpired;
  if (now.closed && whole && counted != now.total) {
    world_.violate(format("{} is closed with {} of {} items", batch_name(id), counted, now.total));
  }
}

// Each item that counts stands in one of the files, once.
void Ledger::check_files(Store& store, const Batch& batch) {
  std::set<std::string> found;
  int64_t num_lines = 0;
  for (FileId id : {batch.output_file, batch.error_file}) {
    if (id == 0) continue;
    Result<StoredFile> file = store.batches().file(id);
    Result<std::string> text =
        file.ok() ? testing::text_of(contents_, file.value().content) : Result<std::string>(file.status());
    if (!text.ok())
      return world_.violate(format("{} of {} cannot be read", file_name(id), batch_name(batch.job)));
    std::istringstream lines(text.value());
    for (std::string line; std::getline(lines, line); ++num_lines) {
      found.insert(nlohmann::json::parse(line, nullptr, false).value("custom_id", ""));
    }
  }
  int64_t counted = batch.completed + batch.failed;
  if (num_lines == counted && static_cast<int64_t>(found.size()) == counted) return;
  world_.violate(format("the files of {} have {} lines of {} items: {} were counted",
                        batch_name(batch.job),
                        num_lines,
                        found.size(),
                        counted));
}

void Ledger::check_all(Store& store) {
  Result<std::vector<Job>> jobs = store.jobs({.limit = kAll});
  if (!jobs.ok()) return world_.violate("jobs cannot be read");
  std::set<JobId> found;
  for (const Job& job : jobs.value()) found.insert(job.id);
  for (auto& [id, known] : known_) {
    if (!found.contains(id)) {
      if (!removed_.contains(id)) world_.violate(format("lost: {}", job_name(id)));
      continue;
    }
    std::vector<Event> events = store.events(id, 0, kAll).value();
    bool whole = events.size() >= known.events.size() &&
                 std::equal(known.events.begin(), known.events.end(), events.begin(), same);
    if (!whole) world_.violate(format("the history of {} has changed", job_name(id)));
  }
  for (auto job = jobs.value().rbegin(); job != jobs.value().rend(); ++job) {
    learn(store, job->id);
    if (job->kind == JobKind::kBatchInference) check_items(store, job->id);
  }
}

void Ledger::check_ended(Store& store) {
  check_all(store);
  for (const auto& [id, known] : known_) {
    if (removed_.contains(id)) continue;
    if (!is_terminal(known.events.back().to)) {
      world_.violate(format("{} does not end: {}", job_name(id), known.events.back().to));
    }
    if (known.kind != JobKind::kBatchInference) continue;
    Result<Batch> batch = store.batches().batch(id);
    if (!batch.ok() || !batch.value().closed) world_.violate(format("{} is never closed", batch_name(id)));
  }
  if (machine_.num_living() > 0) world_.violate(format("{} processes are left", machine_.num_living()));
}

void Ledger::acknowledged(int64_t token, JobId id) {
  ++world_.result.num_acknowledged;
  auto found = by_token_.find(token);
  if (found != by_token_.end() && (found->second == id || removed_.contains(id))) return;
  world_.violate(format("a client was told of {}, which is not what it asked for", job_name(id)));
}

int64_t Ledger::version_of(JobId job) const {
  auto found = known_.find(job);
  return found == known_.end() ? 0 : static_cast<int64_t>(found->second.events.size());
}

std::vector<JobId> Ledger::jobs() const {
  std::vector<JobId> ids;
  for (const auto& [id, known] : known_) {
    if (!removed_.contains(id)) ids.push_back(id);
  }
  return ids;
}

}  // namespace llm_dist::cluster::simulation
