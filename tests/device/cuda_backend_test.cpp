#include <gtest/gtest.h>

#include <cstring>

#include "tests/device/cuda_module.h"

namespace llm_dist::device {
namespace {

class CudaBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    auto module = cuda_module();
    ASSERT_TRUE(module.ok()) << module.status().to_string();
    module_ = *module;
    if (module_->visible_devices() == 0) GTEST_SKIP() << "no GPU";
    backend_ = module_->make_backend(0).value();
    stream_ = backend_->make_stream("test");
  }
  void synchronize() {
    Status status = stream_->synchronize(Deadline::after_seconds(30));
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  Tensor numbers(Buffer& buffer) { return buffer.view(DType::kI32, {buffer.bytes() / 4}); }

  const kernels::CudaModule* module_ = nullptr;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CudaBackendTest, AllocationsAreZeroedAndCopiesArrive) {
  constexpr int64_t kBytes = 1 << 20;
  Buffer host = backend_->allocate(kBytes, MemoryKind::kPinned).value();
  Buffer device = backend_->allocate(kBytes, MemoryKind::kDevice).value();
  std::memset(host.data(), 0x5a, kBytes);
  stream_->copy(numbers(host), numbers(device));
  synchronize();
  for (int64_t i = 0; i < kBytes; ++i) ASSERT_EQ(host.data()[i], std::byte{0});
  std::memset(host.data(), 0x5a, kBytes);
  stream_->copy(numbers(device), numbers(host));
  stream_->fill_zero(numbers(device).rows(0, 1));
  Buffer back = backend_->allocate(kBytes, MemoryKind::kPinned).value();
  stream_->copy(numbers(back), numbers(device));
  synchronize();
  EXPECT_EQ(back.data()[0], std::byte{0});
  EXPECT_EQ(back.data()[4], std::byte{0x5a});
  EXPECT_EQ(back.data()[kBytes - 1], std::byte{0x5a});
  EXPECT_GT(backend_->memory_info().value().free_bytes, 0);
}

TEST_F(CudaBackendTest, EventsOrderStreamsAndGraphsReplay) {
  Buffer a = backend_->allocate(4, MemoryKind::kPinned).value();
  Buffer b = backend_->allocate(4, MemoryKind::kPinned).value();
  Buffer device = backend_->allocate(4, MemoryKind::kDevice).value();
  auto* value = reinterpret_cast<int32_t*>(a.data());
  auto* arrived = reinterpret_cast<int32_t*>(b.data());
  backend_->begin_capture(*stream_);
  stream_->copy(numbers(device), numbers(a));
  auto graph = backend_->end_capture(*stream_);
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  auto other = backend_->make_stream("other");
  auto event = backend_->make_event();
  EXPECT_TRUE(event->complete());
  for (int32_t i = 1; i < 50; ++i) {
    *value = i;
    (*graph)->launch(*stream_);
    stream_->record(*event);
    other->wait(*event);
    other->copy(numbers(b), numbers(device));
    other->record(*event);
    ASSERT_TRUE(event->wait(Deadline::after_seconds(10)).ok());
    ASSERT_EQ(*arrived, i);
  }
}

TEST_F(CudaBackendTest, TimestampsAdvance) {
  Buffer times = backend_->allocate(16, MemoryKind::kPinned).value();
  auto* ns = reinterpret_cast<int64_t*>(times.data());
  stream_->write_timestamp(ns);
  synchronize();
  stream_->write_timestamp(ns + 1);
  synchronize();
  EXPECT_GT(ns[0], 0);
  EXPECT_GT(ns[1], ns[0]);
}

TEST_F(CudaBackendTest, TheFirstErrorStays) {
  auto event = backend_->make_event();
  stream_->fail(aborted("first"));
  stream_->fail(aborted("second"));
  stream_->record(*event);
  EXPECT_EQ(event->wait(Deadline::after_seconds(1)).message(), "first");
  EXPECT_EQ(stream_->synchronize(Deadline::after_seconds(1)).message(), "first");
  EXPECT_EQ(module_->make_backend(99).status().code(), StatusCode::kFailedPrecondition);
}

// It skips what it was to record, and the event still looks complete.
TEST_F(CudaBackendTest, WhoWaitsForAFailedStreamFailsToo) {
  auto event = backend_->make_event();
  auto other = backend_->make_stream("other");
  stream_->record(*event);
  synchronize();
  stream_->fail(aborted("lost"));
  stream_->record(*event);
  other->wait(*event);
  EXPECT_EQ(other->error().message(), "lost");
  EXPECT_EQ(other->poll().message(), "lost");
}

TEST_F(CudaBackendTest, APollNeitherWaitsNorTakesWorkForAnError) {
  constexpr int64_t kBytes = 256 << 20;
  Buffer from = backend_->allocate(kBytes, MemoryKind::kDevice).value();
  Buffer to = backend_->allocate(kBytes, MemoryKind::kDevice).value();
  auto event = backend_->make_event();
  for (int i = 0; i < 1000; ++i) stream_->copy(numbers(to), numbers(from));
  stream_->record(*event);
  EXPECT_TRUE(stream_->poll().ok());
  EXPECT_FALSE(event->complete());
  synchronize();
  EXPECT_TRUE(stream_->poll().ok());
}

}  // namespace
}  // namespace llm_dist::device
