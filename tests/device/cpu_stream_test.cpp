#include "src/device/cpu/cpu_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::device {
namespace {

using std::chrono::milliseconds;

Deadline soon() { return Deadline::after_seconds(10); }

TEST(CpuStream, RunsInOrderAndAsynchronously) {
  CpuStream stream({.name = "test", .capacity = 8});
  std::vector<int> seen;
  std::atomic<bool> go{false};
  stream.enqueue([&go] {
    while (!go) std::this_thread::yield();
  });
  for (int i = 0; i < 5; ++i) stream.enqueue([&seen, i] { seen.push_back(i); });
  EXPECT_TRUE(seen.empty()) << "issuing must not run the work";
  go = true;
  ASSERT_TRUE(stream.synchronize(soon()).ok());
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(CpuStream, IssuingMoreThanTheRingHoldsWaitsForRoom) {
  CpuStream stream({.name = "test", .capacity = 4});
  std::atomic<int> count{0};
  for (int i = 0; i < 1000; ++i) stream.enqueue([&count] { ++count; });
  ASSERT_TRUE(stream.synchronize(soon()).ok());
  EXPECT_EQ(count, 1000);
}

TEST(CpuStream, AnEventOrdersTwoStreams) {
  auto backend = make_cpu_backend({});
  auto first = backend->make_stream("first");
  auto second = backend->make_stream("second");
  auto event = backend->make_event();
  std::atomic<bool> go{false};
  std::atomic<int> value{0};
  int read = -1;
  as_cpu(*first).enqueue([&value, &go] {
    while (!go) std::this_thread::yield();
    std::this_thread::sleep_for(milliseconds(30));
    value = 7;
  });
  first->record(*event);
  EXPECT_FALSE(event->complete());
  second->wait(*event);
  as_cpu(*second).enqueue([&value, &read] { read = value; });
  go = true;
  ASSERT_TRUE(second->synchronize(soon()).ok());
  EXPECT_EQ(read, 7);
  EXPECT_TRUE(event->complete());
}

TEST(CpuStream, AnEventNeverRecordedIsCompleteAndWaitingMeansTheLatestRecord) {
  auto backend = make_cpu_backend({});
  auto stream = backend->make_stream("stream");
  auto event = backend->make_event();
  EXPECT_TRUE(event->complete());
  EXPECT_TRUE(event->wait(soon()).ok());
  std::atomic<int> value{0};
  for (int i = 1; i <= 3; ++i) {
    as_cpu(*stream).enqueue([&value, i] {
      std::this_thread::sleep_for(milliseconds(5));
      value = i;
    });
    stream->record(*event);
  }
  ASSERT_TRUE(event->wait(soon()).ok());
  EXPECT_EQ(value, 3);
}

TEST(CpuStream, AFailureIsStickyAndReachesEveryWaiter) {
  auto backend = make_cpu_backend({});
  auto broken = backend->make_stream("broken");
  auto other = backend->make_stream("other");
  auto event = backend->make_event();
  std::atomic<bool> ran{false};
  Stream* raw = broken.get();
  as_cpu(*broken).enqueue([raw] {
    std::this_thread::sleep_for(milliseconds(30));
    raw->fail(aborted("the peer died"));
  });
  as_cpu(*broken).enqueue([&ran] { ran = true; });
  broken->record(*event);
  other->wait(*event);
  EXPECT_EQ(event->wait(soon()).code(), StatusCode::kAborted);
  EXPECT_EQ(broken->synchronize(soon()).message(), "the peer died");
  EXPECT_EQ(other->synchronize(soon()).code(), StatusCode::kAborted)
      << "a stream that waits for a failed one fails too";
  EXPECT_FALSE(ran);
}

TEST(CpuStream, SynchronizeAndEventsKeepTheirDeadlines) {
  auto backend = make_cpu_backend({});
  auto stream = backend->make_stream("slow");
  auto event = backend->make_event();
  std::atomic<bool> go{false};
  as_cpu(*stream).enqueue([&go] {
    while (!go) std::this_thread::yield();
  });
  stream->record(*event);
  EXPECT_EQ(stream->synchronize(Deadline::after_seconds(0.02)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(event->wait(Deadline::after_seconds(0.02)).code(), StatusCode::kDeadlineExceeded);
  go = true;
  EXPECT_TRUE(stream->synchronize(soon()).ok());
}

TEST(CpuGraph, ReplaysWhatWasCapturedAtItsAddresses) {
  auto backend = make_cpu_backend({});
  auto stream = backend->make_stream("stream");
  auto buffer = backend->allocate(256, MemoryKind::kDevice);
  ASSERT_TRUE(buffer.ok());
  Tensor in = buffer->view(DType::kI32, {1});
  Tensor out = buffer->view(DType::kI32, {1}, 64);
  backend->begin_capture(*stream);
  stream->copy(out, in);
  auto graph = backend->end_capture(*stream);
  ASSERT_TRUE(graph.ok());
  ASSERT_TRUE(stream->synchronize(soon()).ok());
  EXPECT_EQ(*out.as<int32_t>(), 0) << "capturing must not run the work";
  for (int32_t value : {5, 6}) {
    *in.as<int32_t>() = value;
    (*graph)->launch(*stream);
    ASSERT_TRUE(stream->synchronize(soon()).ok());
    EXPECT_EQ(*out.as<int32_t>(), value);
  }
}

TEST(CpuBackend, MemoryIsZeroedAndItsLimitIsKnown) {
  auto backend = make_cpu_backend({});
  auto buffer = backend->allocate(4096, MemoryKind::kPinned);
  ASSERT_TRUE(buffer.ok());
  for (int i = 0; i < 4096; ++i) ASSERT_EQ(buffer->data()[i], std::byte{0});
  MemoryInfo info = process_memory_info();
  EXPECT_GT(info.total_bytes, 0);
  EXPECT_LE(info.free_bytes, info.total_bytes);
  EXPECT_FALSE(backend->allocate(int64_t{1} << 60, MemoryKind::kDevice).ok());
}

TEST(CpuStream, TimestampsFollowTheStreamsOrder) {
  auto backend = make_cpu_backend({});
  auto stream = backend->make_stream("stream");
  int64_t before = 0, after = 0;
  stream->write_timestamp(&before);
  as_cpu(*stream).enqueue([] { std::this_thread::sleep_for(milliseconds(10)); });
  stream->write_timestamp(&after);
  ASSERT_TRUE(stream->synchronize(soon()).ok());
  EXPECT_GE(after - before, 10'000'000);
}

}  // namespace
}  // namespace llm_dist::device
