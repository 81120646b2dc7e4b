// CpuCommunicator: what every backend over host memory shares: arguments are checked where the call is made,
// the work runs on the CPU stream's thread, and an error fails the stream.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <string_view>

#include "comm/collective_times.h"
#include "comm/communicator.h"

namespace llm_dist::comm {

std::string_view to_string(Collective kind);

// One call, checked. `count` elements and `bytes` are those of one rank's part (of the whole tensor where the
// call has no parts). all_reduce and broadcast have in == out.
struct CollectiveCall {
  Collective kind = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kF32;
  int peer = -1;  // root of a broadcast, peer of a send or recv
  int64_t count = 0;
  size_t bytes = 0;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;

  bool matches(const CollectiveCall& other) const {
    return kind == other.kind && op == other.op && dtype == other.dtype && peer == other.peer &&
           count == other.count;
  }
};
std::string to_string(const CollectiveCall& call);  // "all_reduce of 576 bf16"

// A communicator outlives the streams' work that was issued through it, and is used on one stream at a time.
class CpuCommunicator : public Communicator, public TimesCollectives {
 public:
  explicit CpuCommunicator(CommInfo info) : info_(std::move(info)) {}
  const CommInfo& info() const override { return info_; }
  CollectiveTimes collective_times() const override;

  void all_reduce(const Tensor& data, ReduceOp op, device::Stream& stream) override;
  void all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) override;
  void reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op, device::Stream& stream) override;
  void broadcast(const Tensor& data, int root, device::Stream& stream) override;
  void send(const Tensor& data, int peer, device::Stream& stream) override;
  void recv(const Tensor& data, int peer, device::Stream& stream) override;
  void all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) override;

 protected:
  // Does `call`, on the stream's thread; never called for an empty one.
  virtual Status run(const CollectiveCall& call) = 0;

 private:
  void issue(const CollectiveCall& call, device::Stream& stream);
  void note(Collective kind, int64_t ns);

  CommInfo info_;
  std::array<std::atomic<uint64_t>, kNumCollectives> calls_{};
  std::array<std::atomic<int64_t>, kNumCollectives> ns_{};
};

}  // namespace llm_dist::comm
