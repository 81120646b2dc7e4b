#include "cluster/caretaker.h"

#include <utility>

#include "src/base/log.h"

namespace llm_dist::cluster {
namespace {

// A burst of submissions is one look, not one each.
constexpr auto kBurst = std::chrono::milliseconds(10);

}  // namespace

Caretaker::Caretaker(std::shared_ptr<Threads> threads)
    : threads_(std::move(threads)), wake_(threads_->make_condition()) {}

void Caretaker::start(Parts parts) {
  parts_ = std::make_unique<Parts>(std::move(parts));
  parts_->batches.wake = [this] { wake(); };
  supervisor_ = threads_->start([this] { supervise(); });
  batches_ = threads_->start([this] { run_batches(); });
}

void Caretaker::wake() {
  {
    std::lock_guard lock(mutex_);
    supervisor_woken_ = true;
    batches_woken_ = true;
  }
  wake_->notify_all();
}

void Caretaker::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_->notify_all();
  for (std::unique_ptr<Thread>* thread : {&supervisor_, &batches_}) {
    if (*thread) (*thread)->join();
    thread->reset();
  }
}

// Until `woken`, which it takes back, or the next look is due. False: it is over.
bool Caretaker::sleep(bool& woken) {
  std::unique_lock lock(mutex_);
  wake_->wait_for(lock, threads_->now() + parts_->between_looks, [&] { return stopping_ || woken; });
  if (stopping_) return false;
  woken = false;
  wake_->wait_for(lock, threads_->now() + kBurst, [&] { return stopping_; });
  return !stopping_;
}

void Caretaker::supervise() {
  Supervisor supervisor(parts_->supervisor);
  do {
    Status status = supervisor.tick();
    if (!status.ok()) parts_->on_error("supervision", status);
  } while (sleep(supervisor_woken_));
}

void Caretaker::run_batches() {
  BatchRunner runner(parts_->batches);
  Retention retention(parts_->retention);
  TimePoint next_removal{};
  do {
    Status status = runner.tick();
    if (!status.ok()) parts_->on_error("batches", status);
    remove_old_jobs(retention, next_removal);
  } while (sleep(batches_woken_));
}

void Caretaker::remove_old_jobs(Retention& retention, TimePoint& next) {
  if (threads_->now() < next) return;
  Result<bool> more = retention.tick();
  if (!more.ok()) parts_->on_error("retention", more.status());
  if (!more.ok() || !more.value()) next = threads_->now() + parts_->between_removals;
}

void Caretaker::log_it(const char* what, const Status& status) {
  log_error("{}: {}", what, status.to_string());
}

}  // namespace llm_dist::cluster
