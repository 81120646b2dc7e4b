// Where a lane's sends go, of stages whose tensor groups wait for each other on a device and of others.
#include "parallel/pipeline.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/device/cpu/cpu_backend.h"
#include "tests/comm/silent_communicator.h"

namespace llm_dist::parallel {
namespace {

// Notes on which streams it was called.
class Pair : public comm::SilentCommunicator {
 public:
  explicit Pair(bool by_kernels)
      : SilentCommunicator({.backend = "test", .name = "pair", .rank = 0, .size = 2}),
        by_kernels_(by_kernels) {}
  void send(const Tensor& data, int, device::Stream& stream) override {
    sent_on.push_back(&stream);
    sent_from.push_back(data.data);
  }
  void recv(const Tensor&, int, device::Stream& stream) override { received_on.push_back(&stream); }
  bool moves_by_kernels() const override { return by_kernels_; }

  std::vector<device::Stream*> sent_on;
  std::vector<const void*> sent_from;
  std::vector<device::Stream*> received_on;

 private:
  bool by_kernels_;
};

class LaneOfPair {
 public:
  LaneOfPair(Pair& pair, SendOrder order)
      : lane(Lane::create(*backend, pair, 1, 64, 2, order, "lane").value()) {}

  std::unique_ptr<device::Backend> backend = device::make_cpu_backend({});
  std::unique_ptr<device::Stream> step = backend->make_stream("step");
  std::unique_ptr<Lane> lane;
  std::vector<float> row = std::vector<float>(16, 3.0f);
  Tensor data = Tensor::contiguous(row.data(), DType::kF32, {1, 16});
};

TEST(Lane, SendsBesideTheStepOfWhoWaitsForNobody) {
  Pair pair(true);
  LaneOfPair stage(pair, send_order(pair, 1));
  // More than there are buffers.
  for (int i = 0; i < 5; ++i) stage.lane->send(stage.data, *stage.step);
  EXPECT_EQ(pair.sent_on, std::vector<device::Stream*>(5, &stage.lane->stream()));
  EXPECT_NE(pair.sent_from[0], stage.data.data);
  EXPECT_NE(pair.sent_from[0], pair.sent_from[1]);
  EXPECT_EQ(pair.sent_from[0], pair.sent_from[2]);
  ASSERT_TRUE(stage.lane->stream().synchronize(Deadline::after_seconds(10)).ok());
}

TEST(Lane, SendsBeforeTheNextStepOfWhoWaitsForItsGroupOnTheDevice) {
  Pair pair(true);
  LaneOfPair stage(pair, send_order(pair, 2));
  for (int i = 0; i < 5; ++i) stage.lane->send(stage.data, *stage.step);
  EXPECT_EQ(pair.sent_on, std::vector<device::Stream*>(5, stage.step.get()));
  EXPECT_EQ(pair.sent_from, std::vector<const void*>(5, stage.data.data));
}

TEST(Lane, SendsOfTheHostTakeNoRoomOnADevice) {
  Pair pair(false);
  LaneOfPair stage(pair, send_order(pair, 2));
  stage.lane->send(stage.data, *stage.step);
  EXPECT_EQ(pair.sent_on, std::vector<device::Stream*>{&stage.lane->stream()});
  ASSERT_TRUE(stage.lane->stream().synchronize(Deadline::after_seconds(10)).ok());
}

TEST(Lane, ReceivesOnItsOwnStream) {
  Pair pair(true);
  LaneOfPair stage(pair, SendOrder::kOwnStream);
  EXPECT_EQ(stage.lane->post_receive(stage.data), 0u);
  EXPECT_EQ(stage.lane->post_receive(stage.data), 1u);
  EXPECT_EQ(pair.received_on, std::vector<device::Stream*>(2, &stage.lane->stream()));
  ASSERT_TRUE(stage.lane->stream().synchronize(Deadline::after_seconds(10)).ok());
}

}  // namespace
}  // namespace llm_dist::parallel
