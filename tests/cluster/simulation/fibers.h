// Fibers: the threads of a simulation. All run on one thread of the system, one at a time, each until it
// waits; a seeded generator says which goes on. Time passes only while all of them wait.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "cluster/threads.h"

namespace llm_dist::cluster::simulation {

// Thrown where a fiber waits when it is killed: what stands on its stack goes, and nothing else happens.
struct Killed {};

class Fibers : public Threads {
 public:
  using Group = int;  // of fibers that die together
  static constexpr Group kWorld = 0;

  explicit Fibers(uint64_t seed);
  ~Fibers() override;

  TimePoint now() const override { return now_; }
  // In the group of who starts it.
  std::unique_ptr<Thread> start(std::function<void()> body) override;
  std::unique_ptr<Condition> make_condition() override;

  // One that nobody joins.
  void spawn(Group group, std::function<void()> body);
  // By a fiber: lets others go first.
  void sleep(Duration time);
  // Until stop(), or until no fiber can go on: false. `after_step` runs between two fibers.
  bool run(const std::function<void()>& after_step);
  void stop() { stopping_ = true; }
  // Ends the fibers of a group, by one that is not of it.
  void kill(Group group);
  void kill_all();
  // What the fiber belongs to that runs now.
  Group group() const;

  std::mt19937_64& random() { return random_; }
  // From 0 up to `bound`, without it.
  int64_t below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }
  bool chance(double probability) { return static_cast<double>(random_() >> 11) * 0x1p-53 < probability; }
  Duration between(double low_seconds, double high_seconds);

 private:
  friend class FiberCondition;
  friend class FiberThread;
  struct Fiber;
  std::shared_ptr<Fiber> make(Group group, std::function<void()> body);
  std::shared_ptr<Fiber> pick();
  void resume(const std::shared_ptr<Fiber>& fiber);
  void wait(const void* condition, TimePoint until);
  void notify(const void* condition);
  void kill_if(const std::function<bool(const Fiber&)>& condemned);
  void wait_for_end(const std::shared_ptr<Fiber>& fiber);
  void forget_ended();
  static void enter(unsigned high, unsigned low);
  static void leave(Fiber& fiber, bool for_ever);

  std::mt19937_64 random_;
  TimePoint now_{std::chrono::hours(1)};
  std::vector<std::shared_ptr<Fiber>> fibers_;
  std::vector<std::unique_ptr<char[]>> stacks_;  // that nobody uses now
  std::vector<std::shared_ptr<Fiber>> ready_;
  Fiber* current_ = nullptr;
  bool stopping_ = false;
};

}  // namespace llm_dist::cluster::simulation
