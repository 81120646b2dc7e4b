#include "cluster/api/event_feed.h"

#include <algorithm>

#include "cluster/api/api_reply.h"
#include "cluster/api/job_json.h"
#include "src/base/format.h"
#include "src/http/sse.h"

namespace llm_dist::cluster {
namespace {

constexpr auto kSweep = std::chrono::seconds(1);  // how late a client that left is noticed
constexpr auto kHeartbeat = std::chrono::seconds(15);
constexpr int kEventsAtOnce = 256;

class LongPoll : public Watcher {
 public:
  LongPoll(WriterPtr writer, JobId job, std::optional<int64_t> seen, Deadline deadline)
      : writer_(std::move(writer)), job_(job), seen_(seen), deadline_(deadline) {}

  bool advance(Store& store) override {
    Result<Job> job = store.job(job_);
    if (job.ok()) {
      bool over = is_terminal(job.value().state);
      if (!over && (!seen_ || *seen_ == job.value().version)) return false;
      if (over && seen_ && *seen_ == job.value().version) return answer_unchanged();
    }
    return answer(job);
  }
  bool tick(Store& store, TimePoint now) override {
    if (writer_->disconnected()) return true;
    if (now < deadline_.when()) return false;
    return seen_ ? answer_unchanged() : answer(store.job(job_));
  }
  TimePoint next_tick(TimePoint now) const override { return std::min(deadline_.when(), now + kSweep); }

 private:
  bool answer(const Result<Job>& job) {
    http::Response response =
        job.ok() ? http::Response{.body = render_job(job.value())} : error_reply(job.status());
    if (job.ok()) response.headers.add("ETag", format("\"{}\"", job.value().version));
    writer_->send(response);
    return true;
  }
  bool answer_unchanged() {
    writer_->send({.status = 304, .content_type = "", .headers = {{"ETag", format("\"{}\"", *seen_)}}});
    return true;
  }

  WriterPtr writer_;
  JobId job_;
  std::optional<int64_t> seen_;
  Deadline deadline_;
};

class EventStream : public Watcher {
 public:
  EventStream(WriterPtr writer, JobId job, int64_t after, TimePoint now)
      : writer_(std::move(writer)), job_(job), after_(after), heartbeat_(now + kHeartbeat) {}

  bool advance(Store& store) override {
    while (true) {
      Result<std::vector<Event>> events = store.events(job_, after_, kEventsAtOnce);
      // Dropping the writer in mid-stream tells the client to resume.
      if (!events.ok()) return true;
      for (const Event& event : events.value()) {
        if (!write(event)) return true;
        if (is_terminal(event.to)) return writer_->end(), true;
      }
      if (events.value().size() < kEventsAtOnce) return false;
    }
  }
  bool tick(Store&, TimePoint now) override {
    if (now < heartbeat_) return writer_->disconnected();
    heartbeat_ = now + kHeartbeat;
    return !writer_->write(": still here\n\n");
  }
  TimePoint next_tick(TimePoint now) const override { return std::min(heartbeat_, now + kSweep); }

 private:
  bool write(const Event& event) {
    after_ = event.number;
    return writer_->write(format("id: {}\nevent: state\n", event.number) +
                          http::sse_event(render_event(event)));
  }

  WriterPtr writer_;
  JobId job_;
  int64_t after_;
  TimePoint heartbeat_;
};

}  // namespace

std::unique_ptr<Watcher> make_long_poll(WriterPtr writer,
                                        JobId job,
                                        std::optional<int64_t> seen,
                                        Deadline deadline) {
  return std::make_unique<LongPoll>(std::move(writer), job, seen, deadline);
}
std::unique_ptr<Watcher> make_event_stream(WriterPtr writer, JobId job, int64_t after, TimePoint now) {
  return std::make_unique<EventStream>(std::move(writer), job, after, now);
}

EventFeed::EventFeed(Store& store, std::shared_ptr<Threads> threads)
    : store_(store),
      threads_(std::move(threads)),
      wake_(threads_->make_condition()),
      thread_(threads_->start([this] { run(); })) {}

EventFeed::~EventFeed() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_->notify_all();
  thread_->join();
}

bool EventFeed::add(JobId job, std::unique_ptr<Watcher> watcher) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || num_watchers_ >= kMaxWatchers) return false;
    ++num_watchers_;
    arriving_.emplace_back(job, std::move(watcher));
  }
  wake_->notify_all();
  return true;
}

void EventFeed::changed(const std::vector<JobId>& jobs) {
  {
    std::lock_guard lock(mutex_);
    if (num_watchers_ == 0) return;
    changed_.insert(jobs.begin(), jobs.end());
  }
  wake_->notify_all();
}

void EventFeed::run() {
  while (true) {
    std::set<JobId> jobs;
    {
      std::unique_lock lock(mutex_);
      num_watchers_ = watchers_.size() + arriving_.size();
      auto ready = [this] { return stopping_ || !changed_.empty() || !arriving_.empty(); };
      if (watchers_.empty()) {
        wake_->wait_for(lock, ready);
      } else {
        wake_->wait_for(lock, next_tick(), ready);
      }
      if (stopping_) return;
      jobs.swap(changed_);
      for (auto& [job, watcher] : arriving_) {
        jobs.insert(job);
        watchers_.emplace(job, std::move(watcher));
      }
      arriving_.clear();
    }
    advance(jobs);
    tick();
  }
}

void EventFeed::advance(const std::set<JobId>& jobs) {
  for (JobId job : jobs) {
    auto [first, last] = watchers_.equal_range(job);
    while (first != last) first = first->second->advance(store_) ? watchers_.erase(first) : std::next(first);
  }
}

void EventFeed::tick() {
  TimePoint now = threads_->now();
  std::erase_if(watchers_, [&](auto& entry) { return entry.second->tick(store_, now); });
}

TimePoint EventFeed::next_tick() const {
  TimePoint now = threads_->now();
  TimePoint next = now + kSweep;
  for (const auto& [job, watcher] : watchers_) next = std::min(next, watcher->next_tick(now));
  return next;
}

}  // namespace llm_dist::cluster
