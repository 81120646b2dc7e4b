#include "src/device/staged_copy.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <numeric>
#include <thread>

#include "tests/device/separate_backend.h"

namespace llm_dist::device {
namespace {

constexpr int64_t kLotBytes = 4096;
constexpr double kDeadlineSeconds = 30;

void wait_until(const std::function<bool()>& reached) {
  const Deadline deadline = Deadline::after_seconds(kDeadlineSeconds);
  while (!reached() && !deadline.expired()) std::this_thread::yield();
  EXPECT_TRUE(reached());
}

std::byte value_of(size_t lot, int64_t i) { return static_cast<std::byte>(lot * 7 + static_cast<size_t>(i)); }

// Lots of known bytes, copied to a device, and what was seen of that. Hooks are called on the threads that
// fill.
struct Case {
  Case(size_t lot_count, int thread_count, SeparateBackend::Options options = {})
      : lots(lot_count), threads(thread_count) {
    options.on_release = [this] { EXPECT_EQ(filling, 0) << "memory freed that a thread fills"; };
    backend = std::make_unique<SeparateBackend>(std::move(options));
    stream = backend->make_stream("copies");
    target = backend->allocate(static_cast<int64_t>(lots) * kLotBytes, MemoryKind::kDevice).value();
  }

  Status run() {
    return run_staged_copy(
        {.lots = lots,
         .lot_bytes = kLotBytes,
         .threads = threads,
         .deadline_seconds = kDeadlineSeconds,
         .fill = [this](size_t thread, size_t lot, std::byte* memory) { return fill(thread, lot, memory); },
         .copy = [this](size_t lot, std::byte* memory) { copy(lot, memory); }},
        *backend,
        *stream);
  }
  Status fill(size_t thread, size_t lot, std::byte* memory) {
    ++filling;
    {
      std::lock_guard lock(mutex);
      begun.push_back(lot);
    }
    EXPECT_LT(thread, static_cast<size_t>(threads));
    for (int64_t i = 0; i < kLotBytes; ++i) memory[i] = value_of(lot, i);
    Status status = during_fill ? during_fill(lot) : ok_status();
    ++filled;
    --filling;
    return status;
  }
  void copy(size_t lot, std::byte* memory) {
    copied.push_back(lot);
    if (during_copy) during_copy(lot);
    if (lot == failing_copy) stream->fail(internal_error("the device is gone"));
    stream->copy(target.view(DType::kU8, {kLotBytes}, static_cast<int64_t>(lot) * kLotBytes),
                 Tensor::contiguous(memory, DType::kU8, {kLotBytes}));
  }
  void expect_all_there() const {
    for (size_t lot = 0; lot < lots; ++lot) {
      const std::byte* bytes = target.data() + static_cast<int64_t>(lot) * kLotBytes;
      for (int64_t i = 0; i < kLotBytes; ++i) ASSERT_EQ(bytes[i], value_of(lot, i)) << lot;
    }
  }

  size_t lots;
  int threads;
  std::function<Status(size_t lot)> during_fill;
  std::function<void(size_t lot)> during_copy;
  size_t failing_copy = SIZE_MAX;
  std::atomic<int> filling = 0;
  std::atomic<int> filled = 0;
  std::mutex mutex;
  std::vector<size_t> begun;
  std::vector<size_t> copied;
  std::unique_ptr<SeparateBackend> backend;
  std::unique_ptr<Stream> stream;
  Buffer target;
};

std::vector<size_t> up_to(size_t count) {
  std::vector<size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST(StagedCopy, EveryLotArrivesThroughTwoLotsOfMemoryAThread) {
  for (size_t lots : {1, 2, 5, 200}) {
    for (int threads : {1, 3, 8}) {
      Case test(lots, threads);
      Status status = test.run();
      ASSERT_TRUE(status.ok()) << status.to_string();
      test.expect_all_there();
      EXPECT_LE(test.backend->pinned_buffers(), 2 * threads);
      EXPECT_LE(test.backend->pinned_buffers(), static_cast<int>(lots));
    }
  }
}

TEST(StagedCopy, OneThreadFillsAndCopiesInOrder) {
  Case test(20, 1);
  ASSERT_TRUE(test.run().ok());
  EXPECT_EQ(test.begun, up_to(20));
  EXPECT_EQ(test.copied, up_to(20));
}

TEST(StagedCopy, NothingNeedsNoMemory) {
  Case test(0, 4);
  ASSERT_TRUE(test.run().ok());
  EXPECT_EQ(test.backend->pinned_buffers(), 0);
}

// The stream stands still until all memory is filled: whatever is filled again before it was copied arrives
// wrong.
TEST(StagedCopy, MemoryIsFilledAgainOnlyAfterItsCopies) {
  constexpr int kThreads = 3;
  std::atomic<int>* filled = nullptr;
  SeparateBackend::Options options;
  options.cpu.before_task = [&](const std::string&, uint64_t) {
    wait_until([&] { return *filled >= 2 * kThreads; });
  };
  Case test(40, kThreads, std::move(options));
  filled = &test.filled;
  ASSERT_TRUE(test.run().ok());
  test.expect_all_there();
}

// The other thread goes on, through more lots than there is memory for, and what it fills is copied.
TEST(StagedCopy, ALotThatTakesLongHoldsUpNoOther) {
  Case test(30, 2);
  test.during_fill = [&](size_t lot) {
    if (lot == 0) wait_until([&] { return test.filled == 29; });
    return ok_status();
  };
  ASSERT_TRUE(test.run().ok());
  EXPECT_EQ(test.copied.back(), 0u);
  test.expect_all_there();
}

// Copies hold all of the ring when it grows to its end, and have ended soon after: the thread that gets the
// new memory is not to be the only one that fills.
TEST(StagedCopy, ARingThatHasJustGrownGivesMemoryBack) {
  std::atomic<bool> last_begun = false;
  Case* running = nullptr;
  auto wait_for_filled = [&](int count) {
    wait_until([&] { return running->filled >= count; });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // and handed over
  };
  SeparateBackend::Options options;
  options.cpu.before_task = [&](const std::string&, uint64_t) {
    wait_until([&] { return last_begun.load(); });
  };
  options.on_pin = [&](int buffers) {
    if (buffers == 3) wait_for_filled(2);
  };
  Case test(20, 2, std::move(options));
  running = &test;
  test.during_fill = [&](size_t lot) {
    if (lot < 2) wait_until([&] { return test.backend->pinned_buffers() >= 3; });
    if (lot == 3) {
      last_begun = true;
      wait_until([&] { return test.filling > 1 || test.filled > 3; });
    }
    return ok_status();
  };
  test.during_copy = [&](size_t lot) {
    if (lot == 0) wait_for_filled(3);
  };
  ASSERT_TRUE(test.run().ok());
  test.expect_all_there();
}

TEST(StagedCopy, AFailureEndsItOnceNoThreadFills) {
  for (int threads : {1, 4}) {
    Case test(1000, threads);
    std::atomic<bool> failed = false;
    test.during_fill = [&](size_t lot) {
      if (lot == 20) {
        if (threads > 1) wait_until([&] { return test.filling > 1; });
        failed = true;
        return data_loss("lot 20 is damaged");
      }
      // Some are being filled when the error is known.
      if (lot > 20) wait_until([&] { return failed.load(); });
      return ok_status();
    };
    Status status = test.run();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_EQ(status.message(), "lot 20 is damaged");
    EXPECT_EQ(test.filling, 0);
    EXPECT_LT(test.begun.size(), 1000u);
    EXPECT_EQ(std::count(test.copied.begin(), test.copied.end(), 20u), 0);
  }
}

TEST(StagedCopy, AStreamThatFailsEndsIt) {
  Case test(1000, 3);
  test.failing_copy = 10;
  Status status = test.run();
  EXPECT_EQ(status.message(), "the device is gone");
  EXPECT_EQ(test.filling, 0);
  EXPECT_LT(test.begun.size(), 1000u);
}

TEST(StagedCopy, MemoryThatIsRefusedEndsIt) {
  for (int most : {0, 2}) {
    SeparateBackend::Options options;
    options.most_pinned = most;
    // Without copies that end the ring must grow.
    std::atomic<bool> refused = false;
    options.cpu.before_task = [&](const std::string&, uint64_t) {
      wait_until([&] { return refused.load(); });
    };
    Case test(50, 4, std::move(options));
    std::jthread watch([&] {
      wait_until([&] { return test.backend->pinned_buffers() > most; });
      refused = true;
    });
    Status status = test.run();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
    EXPECT_EQ(test.filling, 0);
  }
}

}  // namespace
}  // namespace llm_dist::device
