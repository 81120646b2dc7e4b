#include "comm/message_communicator.h"

#include <algorithm>
#include <cstring>

#include "comm/reduce.h"

namespace llm_dist::comm {
namespace {

constexpr int kKinds = 8;

// Ranks that are not in the same call do not match each other's messages, and the deadline then names them.
int tag_of(Collective kind, unsigned call_number) {
  unsigned cycle = call_number % static_cast<unsigned>(MessageChannel::kTags / kKinds);
  return static_cast<int>(cycle) * kKinds + static_cast<int>(kind);
}

}  // namespace

MessageCommunicator::MessageCommunicator(CommInfo info, MessageGroup group)
    : CpuCommunicator(std::move(info)),
      group_(std::move(group)),
      scratch_(new std::byte[kSlotBytes * group_.world_ranks.size()]),
      parts_(group_.world_ranks.size()),
      deadline_(Deadline::after(Duration::zero())),
      backoff_(group_.longest_sleep) {}

Status MessageCommunicator::poll() const {
  group_.notices->read_notices();
  return group_.error->get();
}

void MessageCommunicator::abort(Status cause) {
  if (group_.error->set(cause)) group_.tell_peers(cause);
}

Status MessageCommunicator::run(const CollectiveCall& call) {
  RETURN_IF_ERROR(group_.error->get());
  deadline_ = Deadline::after(group_.timeout);
  // Pairs of ranks number their messages themselves: other ranks do not take part.
  bool pair = call.kind == Collective::kSend || call.kind == Collective::kRecv;
  tag_ = pair ? tag_of(Collective::kSend, 0) : tag_of(call.kind, num_calls_++);
  Status status = collective(call);
  if (status.ok()) return status;
  group_.channel->cancel();
  group_.notices->read_notices();  // what a peer said before it left tells more than that it left
  abort(status);
  return group_.error->get();
}

Status MessageCommunicator::collective(const CollectiveCall& call) {
  switch (call.kind) {
    case Collective::kAllReduce: return run_all_reduce(call);
    case Collective::kReduceScatter: return run_reduce_scatter(call);
    case Collective::kAllGather: return exchange_parts(call, true);
    case Collective::kAllToAll: return exchange_parts(call, false);
    case Collective::kBroadcast: return run_broadcast(call);
    case Collective::kSend:
    case Collective::kRecv: return one_way(call);
  }
  return internal_error("an unknown collective");
}

template <typename F>
Status MessageCommunicator::for_each_peer(F f) {
  // Starting at the next rank, so that not all send to rank 0 first.
  for (int i = 1; i < info().size; ++i) RETURN_IF_ERROR(f((info().rank + i) % info().size));
  return {};
}

MessageCommunicator::Slice MessageCommunicator::slice_of(int rank, int64_t count) const {
  return {count * rank / info().size, count * (rank + 1) / info().size};
}

void MessageCommunicator::set_parts(const std::byte* mine) {
  for (int r = 0; r < info().size; ++r) parts_[static_cast<size_t>(r)] = r == info().rank ? mine : slot(r);
}

// Both ends know the length, so an empty message is left out by both.
Status MessageCommunicator::start_send(const void* data, size_t bytes, int peer) {
  return bytes == 0 ? ok_status() : group_.channel->start_send(data, bytes, peer, tag_);
}
Status MessageCommunicator::start_recv(void* data, size_t bytes, int peer) {
  return bytes == 0 ? ok_status() : group_.channel->start_recv(data, bytes, peer, tag_);
}

Status MessageCommunicator::wait(const CollectiveCall& call) {
  MessageWait wait{.error = *group_.error,
                   .notices = *group_.notices,
                   .world_ranks = group_.world_ranks,
                   .group = info().name,
                   .backoff = backoff_};
  return wait_for_messages(*group_.channel, wait, deadline_, to_string(call.kind));
}

Status MessageCommunicator::run_all_reduce(const CollectiveCall& call) {
  if (call.bytes <= kDirectBytes) return reduce_direct(call, call.out, call.count);
  int64_t element = dtype_bytes(call.dtype);
  // slice_of() rounds up by less than one element.
  int64_t round = (static_cast<int64_t>(kSlotBytes) / element - 1) * info().size;
  for (int64_t begin = 0; begin < call.count; begin += round)
    RETURN_IF_ERROR(reduce_by_slices(call, call.out + begin * element, std::min(round, call.count - begin)));
  return {};
}

Status MessageCommunicator::reduce_direct(const CollectiveCall& call, std::byte* data, int64_t count) {
  RETURN_IF_ERROR(for_each_peer([&](int peer) { return start_recv(slot(peer), call.bytes, peer); }));
  RETURN_IF_ERROR(for_each_peer([&](int peer) { return start_send(data, call.bytes, peer); }));
  RETURN_IF_ERROR(wait(call));
  set_parts(data);
  reduce_parts(call.dtype, call.op, parts_, count, data);
  return {};
}

Status MessageCommunicator::reduce_by_slices(const CollectiveCall& call, std::byte* data, int64_t count) {
  int64_t element = dtype_bytes(call.dtype);
  auto at = [&](int rank) { return data + slice_of(rank, count).begin * element; };
  auto bytes = [&](int rank) {
    Slice slice = slice_of(rank, count);
    return static_cast<size_t>((slice.end - slice.begin) * element);
  };
  int me = info().rank;
  RETURN_IF_ERROR(for_each_peer([&](int peer) { return start_recv(slot(peer), bytes(me), peer); }));
  RETURN_IF_ERROR(for_each_peer([&](int peer) { return start_send(at(peer), bytes(peer), peer); }));
  RETURN_IF_ERROR(wait(call));
  set_parts(at(me));
  Slice mine = slice_of(me, count);
  reduce_parts(call.dtype, call.op, parts_, mine.end - mine.begin, at(me));
  RETURN_IF_ERROR(for_each_peer([&](int peer) { return start_recv(at(peer), bytes(peer), peer); }));
  RETURN_IF_ERROR(for_each_peer([&](int peer) { return start_send(at(me), bytes(me), peer); }));
  return wait(call);
}

Status MessageCommunicator::run_reduce_scatter(const CollectiveCall& call) {
  for (size_t begin = 0; begin < call.bytes; begin += kSlotBytes) {
    size_t bytes = std::min(kSlotBytes, call.bytes - begin);
    auto part = [&](int rank) { return call.in + static_cast<size_t>(rank) * call.bytes + begin; };
    RETURN_IF_ERROR(for_each_peer([&](int peer) { return start_recv(slot(peer), bytes, peer); }));
    RETURN_IF_ERROR(for_each_peer([&](int peer) { return start_send(part(peer), bytes, peer); }));
    RETURN_IF_ERROR(wait(call));
    set_parts(part(info().rank));
    reduce_parts(
        call.dtype, call.op, parts_, static_cast<int64_t>(bytes) / dtype_bytes(call.dtype), call.out + begin);
  }
  return {};
}

Status MessageCommunicator::exchange_parts(const CollectiveCall& call, bool same_to_all) {
  auto part = [&](int rank) { return static_cast<size_t>(rank) * call.bytes; };
  auto from = [&](int rank) { return call.in + (same_to_all ? 0 : part(rank)); };
  for (size_t begin = 0; begin < call.bytes; begin += MessageChannel::kMaxBytes) {
    size_t bytes = std::min(MessageChannel::kMaxBytes, call.bytes - begin);
    RETURN_IF_ERROR(
        for_each_peer([&](int peer) { return start_recv(call.out + part(peer) + begin, bytes, peer); }));
    RETURN_IF_ERROR(for_each_peer([&](int peer) { return start_send(from(peer) + begin, bytes, peer); }));
    RETURN_IF_ERROR(wait(call));
  }
  int me = info().rank;
  if (from(me) != call.out + part(me)) std::memcpy(call.out + part(me), from(me), call.bytes);
  return {};
}

Status MessageCommunicator::run_broadcast(const CollectiveCall& call) {
  for (size_t begin = 0; begin < call.bytes; begin += MessageChannel::kMaxBytes) {
    size_t bytes = std::min(MessageChannel::kMaxBytes, call.bytes - begin);
    if (info().rank == call.peer) {
      RETURN_IF_ERROR(for_each_peer([&](int peer) { return start_send(call.in + begin, bytes, peer); }));
    } else {
      RETURN_IF_ERROR(start_recv(call.out + begin, bytes, call.peer));
    }
    RETURN_IF_ERROR(wait(call));
  }
  return {};
}

Status MessageCommunicator::one_way(const CollectiveCall& call) {
  for (size_t begin = 0; begin < call.bytes; begin += MessageChannel::kMaxBytes) {
    size_t bytes = std::min(MessageChannel::kMaxBytes, call.bytes - begin);
    bool sends = call.kind == Collective::kSend;
    RETURN_IF_ERROR(sends ? start_send(call.in + begin, bytes, call.peer)
                          : start_recv(call.out + begin, bytes, call.peer));
    RETURN_IF_ERROR(wait(call));
  }
  return {};
}

}  // namespace llm_dist::comm
