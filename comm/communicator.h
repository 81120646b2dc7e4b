// Communicator: moves tensors between the ranks of one group, on a stream. One folder a backend; one
// conformance suite (tests/comm) runs over every backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "src/base/status.h"
#include "src/base/tensor.h"
#include "src/device/stream.h"

namespace llm_dist::comm {

// What a group is for, so that a backend prepares what pays.
struct GroupUse {
  bool hands_off = false;    // from one rank to another; otherwise sums, gathers and the like over all ranks
  int64_t shared_bytes = 0;  // rows of the largest step of which each rank has a share
};

enum class ReduceOp : uint8_t { kSum, kMax, kMin };

struct CommInfo {
  std::string backend;  // "self", "thread", "mpi", "nccl", "p2p+nccl"
  std::string name;     // "tp", "stage", "token-return"
  int rank = 0;         // in this group
  int size = 1;
};

// Every tensor is contiguous and every rank of the group issues the same calls in the same order. Calls only
// issue: they return at once, the work happens in stream order. An error (a dead peer, an abort) fails the
// stream and shows in poll(). 16-bit floats are reduced in float and rounded once per rank added at most.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual const CommInfo& info() const = 0;

  // data: any shape, f32 | f16 | bf16 | i32 | i64; in place.
  virtual void all_reduce(const Tensor& data, ReduceOp op, device::Stream& stream) = 0;
  // in: n elements; out: size × n elements, rank r's part r-th. `in` may be its own part of `out`.
  virtual void all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) = 0;
  // in: size × n elements; out: n elements, the sum of every rank's part number rank(). `out` may be that
  // part of `in`.
  virtual void reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op, device::Stream& stream) = 0;
  virtual void broadcast(const Tensor& data, int root, device::Stream& stream) = 0;
  virtual void send(const Tensor& data, int peer, device::Stream& stream) = 0;
  virtual void recv(const Tensor& data, int peer, device::Stream& stream) = 0;
  // in, out: size × n elements; part r of `in` goes to rank r, part r of `out` comes from rank r. Not in
  // place.
  virtual void all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) = 0;

  // Device memory of the group, as much on every rank: sums of tensors that begin where it begins may be
  // faster than of others. It lasts as long as the group. Empty: nothing is gained here.
  virtual std::span<std::byte> sum_memory() const { return {}; }

  // Whether a receive that waits for its sender holds room on a device meanwhile: a kernel with a block on
  // each of its processors takes nearly twice as long then.
  virtual bool waits_on_device() const { return false; }
  // Whether messages are moved by kernels of the device. They find no room while it is taken by kernels that
  // wait for other ranks and by those started early behind them: what these ranks need to go on must not come
  // later than such kernels.
  virtual bool moves_by_kernels() const { return false; }

  // The first error seen by this group, or ok. Any thread.
  virtual Status poll() const = 0;
  // Streams that wait for a peer go on, to what abort() ends. It comes before the abort of any group of the
  // device: what a library does to end a group may wait for the device's other streams. Any thread; never
  // blocks.
  virtual void stop_waiting() {}
  // Ends every operation under way and to come with `cause`, here and (as far as the backend can) at the
  // peers. Any thread; never blocks.
  virtual void abort(Status cause) = 0;
};

}  // namespace llm_dist::comm
