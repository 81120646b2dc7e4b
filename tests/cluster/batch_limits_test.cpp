// What a batch takes of its coordinator: threads and descriptors, and what follows where there are none.
#include <atomic>
#include <filesystem>
#include <system_error>

#include "cluster/item_client.h"
#include "tests/cluster/batch_fixture.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;
using testing::answer;
using testing::FakeReplica;

ptrdiff_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

// The system's, but for those that it is told not to have.
class ScarceThreads : public Threads {
 public:
  TimePoint now() const override { return system_->now(); }
  std::unique_ptr<Condition> make_condition() override { return system_->make_condition(); }
  std::unique_ptr<Thread> start(std::function<void()> body) override {
    ++num_asked;
    if (!has_more) throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    return system_->start(std::move(body));
  }

  std::atomic<bool> has_more = false;
  std::atomic<int> num_asked = 0;

 private:
  std::shared_ptr<Threads> system_ = system_threads();
};

class BatchLimitsTest : public testing::BatchFixture {
 protected:
  static std::vector<std::string> prompts(int count) {
    std::vector<std::string> made;
    for (int i = 0; i < count; ++i) made.push_back("p" + std::to_string(i));
    return made;
  }
};

TEST_F(BatchLimitsTest, ManyItemsInFlightTakeOneThreadAndADescriptorEach) {
  constexpr int kItems = 200;
  options_.concurrency = kItems;
  restart();
  std::atomic<bool> answers = false;
  machine_.behaviour = counting([&](FakeReplica&, const std::string& prompt) {
    while (!answers) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return std::optional(answer(prompt));
  });
  std::string id = make_batch(prompts(kItems));
  ptrdiff_t threads = entries_of("/proc/self/task");
  ptrdiff_t files = entries_of("/proc/self/fd");
  run_until([&] { return times_executed() == kItems; });
  // The replica, which is of this process too, has a thread and a socket for each as well, and its server's.
  constexpr ptrdiff_t kReplica = kItems + 16;
  EXPECT_LE(entries_of("/proc/self/task"), threads + kReplica + 1);
  EXPECT_LE(entries_of("/proc/self/fd"), files + kReplica + kItems + kItemClientFiles);
  answers = true;
  run_to_end(id);
  EXPECT_EQ(batch(id)["request_counts"], (json{{"total", kItems}, {"completed", kItems}, {"failed", 0}}));
}

TEST_F(BatchLimitsTest, ABatchWaitsForItsThread) {
  auto scarce = std::make_shared<ScarceThreads>();
  threads_ = scarce;
  restart();
  std::string id = make_batch(prompts(10));
  run_until([&] { return scarce->num_asked >= 3; });
  EXPECT_EQ(batch(id)["status"], "in_progress");
  EXPECT_EQ(times_executed(), 0);
  scarce->has_more = true;
  run_to_end(id);
  EXPECT_EQ(batch(id)["request_counts"], (json{{"total", 10}, {"completed", 10}, {"failed", 0}}));
  EXPECT_EQ(job(id).attempt, 1) << "the replica was kept";
}

}  // namespace
}  // namespace llm_dist::cluster
