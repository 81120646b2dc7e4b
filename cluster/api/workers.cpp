#include "cluster/api/workers.h"

#include <exception>

#include "cluster/api/api_reply.h"
#include "src/base/log.h"

namespace llm_dist::cluster {

Workers::Workers(int num_threads, size_t max_queued, const std::shared_ptr<Threads>& threads)
    : max_queued_(max_queued), changed_(threads->make_condition()) {
  for (int i = 0; i < num_threads; ++i) threads_.push_back(threads->start([this] { work_off(); }));
}

bool Workers::run(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || queue_.size() >= max_queued_) return false;
    queue_.push_back(std::move(work));
  }
  changed_->notify_all();
  return true;
}

void Workers::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_->notify_all();
  for (auto& thread : threads_) thread->join();
  threads_.clear();
}

void Workers::work_off() {
  while (true) {
    std::unique_lock lock(mutex_);
    changed_->wait_for(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    // A request that nobody thought of ends with its own answer, not with the coordinator: the writer that
    // goes unused says 500.
    try {
      work();
    } catch (const std::exception& error) {
      log_error("a request could not be carried out: {}", error.what());
    }
  }
}

http::Handler on_worker(Workers& workers, Work work) {
  return [&workers, work = std::move(work)](http::Request request,
                                            std::shared_ptr<http::ResponseWriter> writer) {
    // What a worker takes must be copyable.
    auto shared = std::make_shared<http::Request>(std::move(request));
    if (!workers.run([work, shared, writer] { work(*shared, writer); })) {
      writer->send(error_reply(resource_exhausted("too many requests wait for the store")));
    }
  };
}

}  // namespace llm_dist::cluster
