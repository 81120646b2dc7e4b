#include "tests/cluster/simulation/fibers.h"

#include <ucontext.h>

#include <algorithm>
#include <utility>

#include "src/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace llm_dist::cluster::simulation {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 1 << 20;
void about_to_switch(void** fake_stack, const void* bottom, size_t size) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
}
void has_switched(void* fake_stack, const void** bottom, size_t* size) {
  __sanitizer_finish_switch_fiber(fake_stack, bottom, size);
}
#else
constexpr size_t kStackBytes = 256 << 10;
void about_to_switch(void**, const void*, size_t) {}
void has_switched(void*, const void**, size_t*) {}
#endif

}  // namespace

struct Fibers::Fiber {
  Group group;
  std::function<void()> body;
  std::unique_ptr<char[]> stack;
  ucontext_t context{};
  ucontext_t back{};  // of who resumed it
  const void* back_bottom = nullptr;
  size_t back_size = 0;
  const void* waits_on = nullptr;
  TimePoint wake_at{};  // of a wait; in the past: it can go on
  bool notified = false;
  bool killed = false;
  bool ended = false;
};

class FiberCondition : public Condition {
 public:
  explicit FiberCondition(Fibers& fibers) : fibers_(fibers) {}
  void notify_all() override { fibers_.notify(this); }
  void wait(std::unique_lock<std::mutex>& lock) override { wait_until(lock, TimePoint::max()); }
  bool wait_until(std::unique_lock<std::mutex>& lock, TimePoint until) override {
    lock.unlock();
    try {
      fibers_.wait(this, until);
    } catch (const Killed&) {
      lock.lock();
      throw;
    }
    lock.lock();
    return fibers_.now() < until;
  }

 private:
  Fibers& fibers_;
};

class FiberThread : public Thread {
 public:
  FiberThread(Fibers& fibers, std::shared_ptr<Fibers::Fiber> fiber)
      : fibers_(fibers), fiber_(std::move(fiber)) {}
  void join() override { fibers_.wait_for_end(fiber_); }

 private:
  Fibers& fibers_;
  std::shared_ptr<Fibers::Fiber> fiber_;
};

Fibers::Fibers(uint64_t seed) : random_(seed) {}
Fibers::~Fibers() {
  for (const auto& fiber : fibers_) CHECK(fiber->ended, "a fiber outlives its simulation");
}

std::unique_ptr<Thread> Fibers::start(std::function<void()> body) {
  return std::make_unique<FiberThread>(*this, make(group(), std::move(body)));
}
std::unique_ptr<Condition> Fibers::make_condition() { return std::make_unique<FiberCondition>(*this); }
void Fibers::spawn(Group group, std::function<void()> body) { make(group, std::move(body)); }
Fibers::Group Fibers::group() const { return current_ == nullptr ? kWorld : current_->group; }

Duration Fibers::between(double low_seconds, double high_seconds) {
  auto low = static_cast<int64_t>(low_seconds * 1e6);
  auto high = static_cast<int64_t>(high_seconds * 1e6);
  return std::chrono::microseconds(low + below(std::max<int64_t>(1, high - low)));
}

std::shared_ptr<Fibers::Fiber> Fibers::make(Group group, std::function<void()> body) {
  auto fiber = std::make_shared<Fiber>();
  fiber->group = group;
  fiber->body = std::move(body);
  if (stacks_.empty()) stacks_.push_back(std::make_unique_for_overwrite<char[]>(kStackBytes));
  fiber->stack = std::move(stacks_.back());
  stacks_.pop_back();
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack.get();
  fiber->context.uc_stack.ss_size = kStackBytes;
  auto address = reinterpret_cast<uintptr_t>(fiber.get());
  makecontext(&fiber->context,
              reinterpret_cast<void (*)()>(enter),
              2,
              static_cast<unsigned>(address >> 32),
              static_cast<unsigned>(address));
  fibers_.push_back(fiber);
  return fiber;
}

// makecontext() hands over numbers of 32 bits.
void Fibers::enter(unsigned high, unsigned low) {
  Fiber& fiber = *reinterpret_cast<Fiber*>((static_cast<uintptr_t>(high) << 32) | low);
  has_switched(nullptr, &fiber.back_bottom, &fiber.back_size);
  try {
    if (!fiber.killed) fiber.body();
  } catch (const Killed&) {
    // Its stack is empty now: that was all.
  }
  fiber.body = nullptr;
  fiber.ended = true;
  leave(fiber, true);
}

void Fibers::leave(Fiber& fiber, bool for_ever) {
  void* fake_stack = nullptr;
  about_to_switch(for_ever ? nullptr : &fake_stack, fiber.back_bottom, fiber.back_size);
  swapcontext(&fiber.context, &fiber.back);
  has_switched(fake_stack, &fiber.back_bottom, &fiber.back_size);
}

void Fibers::resume(const std::shared_ptr<Fiber>& fiber) {
  Fiber* before = std::exchange(current_, fiber.get());
  fiber->waits_on = nullptr;
  fiber->notified = false;
  void* fake_stack = nullptr;
  about_to_switch(&fake_stack, fiber->stack.get(), kStackBytes);
  swapcontext(&fiber->back, &fiber->context);
  has_switched(fake_stack, nullptr, nullptr);
  current_ = before;
  if (!fiber->ended) return;
  stacks_.push_back(std::move(fiber->stack));
  notify(fiber.get());
}

// A fiber that is killed waits no more, and says so with an exception, unless that is what it is about.
void Fibers::wait(const void* condition, TimePoint until) {
  CHECK(current_ != nullptr, "only fibers wait");
  Fiber& fiber = *current_;
  if (fiber.killed) throw Killed();
  fiber.waits_on = condition;
  fiber.wake_at = until;
  leave(fiber, false);
  if (fiber.killed) throw Killed();
}

// Destructors join: this throws nothing. Who is killed takes with it whom it waits for, which may use what it
// destroys.
void Fibers::wait_for_end(const std::shared_ptr<Fiber>& fiber) {
  while (!fiber->ended && current_ != nullptr) {
    if (current_->killed) {
      fiber->killed = true;
      resume(fiber);
    } else {
      current_->waits_on = fiber.get();
      current_->wake_at = TimePoint::max();
      leave(*current_, false);
    }
  }
}

void Fibers::notify(const void* condition) {
  for (const auto& fiber : fibers_) {
    if (fiber->waits_on == condition) fiber->notified = true;
  }
}

void Fibers::sleep(Duration time) { wait(nullptr, now_ + time); }

std::shared_ptr<Fibers::Fiber> Fibers::pick() {
  ready_.clear();
  TimePoint next = TimePoint::max();
  for (const auto& fiber : fibers_) {
    if (fiber->ended) continue;
    if (fiber->notified || fiber->wake_at <= now_) ready_.push_back(fiber);
    next = std::min(next, fiber->wake_at);
  }
  if (ready_.empty() && next < TimePoint::max()) {
    now_ = next;
    for (const auto& fiber : fibers_) {
      if (!fiber->ended && fiber->wake_at <= now_) ready_.push_back(fiber);
    }
  }
  if (ready_.empty()) return nullptr;
  return ready_[ready_.size() == 1 ? 0 : below(static_cast<int64_t>(ready_.size()))];
}

bool Fibers::run(const std::function<void()>& after_step) {
  while (!stopping_) {
    std::shared_ptr<Fiber> fiber = pick();
    if (fiber == nullptr) return false;
    resume(fiber);
    if (fiber->ended) forget_ended();
    after_step();
  }
  return true;
}

void Fibers::forget_ended() {
  std::erase_if(fibers_, [](const auto& fiber) { return fiber->ended; });
}

void Fibers::kill(Group group) {
  CHECK(current_ == nullptr || current_->group != group, "a group does not kill itself");
  kill_if([group](const Fiber& fiber) { return fiber.group == group; });
}
void Fibers::kill_all() {
  CHECK(current_ == nullptr, "a fiber does not kill itself");
  kill_if([](const Fiber&) { return true; });
}

void Fibers::kill_if(const std::function<bool(const Fiber&)>& condemned) {
  // What dies may still start others, or let them go on: they die too.
  for (bool found = true; found;) {
    found = false;
    const std::vector<std::shared_ptr<Fiber>> all = fibers_;
    for (const auto& fiber : all) {
      if (fiber->ended || !condemned(*fiber)) continue;
      found = true;
      fiber->killed = true;
      resume(fiber);
    }
  }
  if (current_ == nullptr) forget_ended();
}

}  // namespace llm_dist::cluster::simulation
