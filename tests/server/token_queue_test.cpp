// Order and completeness of the queue between the step thread and the stream thread.
#include "src/server/token_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace llm_dist::server {
namespace {

bool push(TokenQueue& queue, int32_t token) {
  TokenRecord record;
  record.token = token;
  return queue.push(record);
}

int32_t pop(TokenQueue& queue) {
  auto record = queue.pop(Deadline::after_seconds(0));
  return record ? record->token : -1;
}

TEST(TokenQueue, KeepsTheOrderThroughAFullRing) {
  TokenQueue queue(4);
  int32_t pushed = 0;
  int32_t popped = 0;
  for (int burst : {3, 9, 1, 5, 2}) {
    for (int i = 0; i < burst; ++i) EXPECT_TRUE(push(queue, pushed++));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(pop(queue), popped++);
  }
  while (popped < pushed) EXPECT_EQ(pop(queue), popped++);
  EXPECT_EQ(pop(queue), -1);
  EXPECT_GT(queue.num_spilled(), 0u);
  uint64_t before = queue.num_spilled();
  push(queue, 7);
  EXPECT_EQ(pop(queue), 7);
  EXPECT_EQ(queue.num_spilled(), before);  // back in the ring
}

TEST(TokenQueue, CloseWakesTheReaderAndRefusesWriters) {
  TokenQueue queue(2);
  std::thread reader([&] { EXPECT_FALSE(queue.pop(Deadline::after_seconds(10))); });
  queue.close();
  reader.join();
  EXPECT_FALSE(push(queue, 1));
}

}  // namespace
}  // namespace llm_dist::server
