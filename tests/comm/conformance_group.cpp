#include "tests/comm/conformance_group.h"

#include <algorithm>

namespace llm_dist::comm {
namespace {

// How often a host that waits for a stream looks after the group.
constexpr double kPollSeconds = 0.02;
// In which an aborted group's work has left the device.
constexpr double kEndSeconds = 3;
// In which a case that ends early waits for what its rank still has under way.
constexpr double kLeaveSeconds = 5;

}  // namespace

GroupUnderTest::~GroupUnderTest() {
  if (stream == nullptr || site_->traits().operations_end_themselves || !stream->error().ok()) return;
  (void)synchronize(kLeaveSeconds);
}

Status GroupUnderTest::synchronize(double seconds) {
  Deadline deadline = Deadline::after_seconds(seconds);
  if (site_->traits().operations_end_themselves) return stream->synchronize(deadline);
  while (true) {
    Status reached = stream->synchronize(Deadline::after_seconds(std::min(seconds, kPollSeconds)));
    bool goes_on = reached.code() == StatusCode::kDeadlineExceeded && stream->error().ok();
    Status state = comm->poll();
    if (state.ok() && goes_on && deadline.expired()) state = reached;
    if (!state.ok()) return end(state);
    if (!goes_on) return reached;
  }
}

Status GroupUnderTest::end(const Status& cause) {
  comm->abort(cause);
  // A stream that has failed does not say when its work ends; this one has not, unless a call was refused.
  Status drained = stream->synchronize(Deadline::after_seconds(kEndSeconds));
  bool goes_on = drained.code() == StatusCode::kDeadlineExceeded && stream->error().ok();
  EXPECT_FALSE(goes_on) << "group " << comm->info().name << " was aborted and its operations go on";
  stream->fail(cause);
  return stream->error();
}

GroupUnderTest make_group(World& world,
                          Site& site,
                          std::span<const int> ranks,
                          const std::string& name,
                          double timeout_seconds,
                          std::unique_ptr<device::Stream> stream) {
  // Before the group: what else makes things on a device then has no peer's operation to wait for.
  if (stream == nullptr) stream = site.backend().make_stream(name);
  auto made = site.make_communicator(
      world, ranks, name, std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000)));
  CHECK(made.ok(), "{}", made.status().to_string());
  std::shared_ptr<Communicator> comm = std::move(made).value();
  if (!site.traits().operations_end_themselves) site.keep(comm);
  return {site, std::move(comm), std::move(stream)};
}

}  // namespace llm_dist::comm
