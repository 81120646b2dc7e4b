#include "cluster/threads.h"

#include <condition_variable>
#include <thread>

namespace llm_dist::cluster {
namespace {

class SystemCondition : public Condition {
 public:
  void notify_all() override { condition_.notify_all(); }
  void wait(std::unique_lock<std::mutex>& lock) override { condition_.wait(lock); }
  bool wait_until(std::unique_lock<std::mutex>& lock, TimePoint until) override {
    return condition_.wait_until(lock, until) == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable condition_;
};

class SystemThread : public Thread {
 public:
  explicit SystemThread(std::function<void()> body) : thread_(std::move(body)) {}
  void join() override { thread_.join(); }

 private:
  std::thread thread_;
};

class SystemThreads : public Threads {
 public:
  TimePoint now() const override { return Clock::now(); }
  std::unique_ptr<Thread> start(std::function<void()> body) override {
    return std::make_unique<SystemThread>(std::move(body));
  }
  std::unique_ptr<Condition> make_condition() override { return std::make_unique<SystemCondition>(); }
};

}  // namespace

std::shared_ptr<Threads> system_threads() { return std::make_shared<SystemThreads>(); }

}  // namespace llm_dist::cluster
