#include "comm/thread/thread_communicator.h"

#include <cstring>

#include "comm/reduce.h"

namespace llm_dist::comm {

ThreadCommunicator::ThreadCommunicator(std::shared_ptr<ThreadGroup> group, CommInfo info, Duration timeout)
    : CpuCommunicator(std::move(info)),
      group_(std::move(group)),
      timeout_(timeout),
      parts_(static_cast<size_t>(group_->size())) {}

Status ThreadCommunicator::run(const CollectiveCall& call) {
  Deadline deadline = Deadline::after(timeout_);
  if (call.kind == Collective::kSend) return group_->send(info().rank, call, deadline);
  if (call.kind == Collective::kRecv) return group_->recv(info().rank, call, deadline);
  RETURN_IF_ERROR(group_->meet(info().rank, call, deadline));
  exchange(call);
  group_->leave();
  return {};
}

void ThreadCommunicator::exchange(const CollectiveCall& call) {
  auto rank = static_cast<size_t>(info().rank);
  switch (call.kind) {
    case Collective::kAllReduce: return all_reduce_slice(call);
    case Collective::kReduceScatter: return reduce_part(call);
    case Collective::kAllGather: return gather(call, 0);
    case Collective::kAllToAll: return gather(call, rank);
    case Collective::kBroadcast:
      if (info().rank != call.peer)
        std::memcpy(call.out, group_->calls()[static_cast<size_t>(call.peer)].in, call.bytes);
      return;
    case Collective::kSend:
    case Collective::kRecv: break;
  }
  CHECK(false, "{} is no collective", call.kind);
}

// In place: only this rank touches its slice of anybody's tensor.
void ThreadCommunicator::all_reduce_slice(const CollectiveCall& call) {
  int64_t begin = call.count * info().rank / info().size;
  int64_t end = call.count * (info().rank + 1) / info().size;
  auto offset = static_cast<size_t>(begin * dtype_bytes(call.dtype));
  auto bytes = static_cast<size_t>((end - begin) * dtype_bytes(call.dtype));
  if (bytes == 0) return;
  auto calls = group_->calls();
  for (size_t r = 0; r < parts_.size(); ++r) parts_[r] = calls[r].in + offset;
  std::byte* mine = call.out + offset;
  reduce_parts(call.dtype, call.op, parts_, end - begin, mine);
  for (const CollectiveCall& peer : calls)
    if (peer.out != call.out) std::memcpy(peer.out + offset, mine, bytes);
}

void ThreadCommunicator::reduce_part(const CollectiveCall& call) {
  size_t offset = call.bytes * static_cast<size_t>(info().rank);
  for (size_t r = 0; r < parts_.size(); ++r) parts_[r] = group_->calls()[r].in + offset;
  reduce_parts(call.dtype, call.op, parts_, call.count, call.out);
}

void ThreadCommunicator::gather(const CollectiveCall& call, size_t part) {
  auto calls = group_->calls();
  for (size_t r = 0; r < calls.size(); ++r) {
    const std::byte* from = calls[r].in + part * call.bytes;
    std::byte* to = call.out + r * call.bytes;
    if (from != to) std::memcpy(to, from, call.bytes);
  }
}

}  // namespace llm_dist::comm
