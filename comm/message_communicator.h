// MessageCommunicator: collectives over host memory, from messages between pairs of ranks. Small reductions
// go straight (every rank gets every part), large ones are a reduce-scatter and an all-gather. Every element
// is added up in rank order by the same arithmetic, so that all ranks hold the same bits. Allocates nothing
// after construction.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/cpu_communicator.h"
#include "comm/first_error.h"
#include "comm/message_transport.h"
#include "comm/message_wait.h"

namespace llm_dist::comm {

struct MessageGroup {
  std::vector<int> world_ranks;
  std::unique_ptr<MessageChannel> channel;
  std::shared_ptr<FirstError> error;
  NoticeReader* notices = nullptr;
  // Tells the group's other ranks why it ended.
  std::function<void(const Status&)> tell_peers;
  Duration timeout{};
  Duration longest_sleep = Backoff::kLongestSleep;  // of a thread that waits for messages
};

class MessageCommunicator : public CpuCommunicator {
 public:
  MessageCommunicator(CommInfo info, MessageGroup group);

  Status poll() const override;
  void abort(Status cause) override;

 protected:
  Status run(const CollectiveCall& call) override;

 private:
  // Elements [begin, end).
  struct Slice {
    int64_t begin;
    int64_t end;
  };

  Status collective(const CollectiveCall& call);
  Status run_all_reduce(const CollectiveCall& call);
  Status reduce_direct(const CollectiveCall& call, std::byte* data, int64_t count);
  Status reduce_by_slices(const CollectiveCall& call, std::byte* data, int64_t count);
  Status run_reduce_scatter(const CollectiveCall& call);
  // To and from every peer, in messages of at most kMaxBytes: part `rank` of call.out comes from each; what
  // goes to a peer is call.in, or its part of call.in.
  Status exchange_parts(const CollectiveCall& call, bool same_to_all);
  Status run_broadcast(const CollectiveCall& call);
  Status one_way(const CollectiveCall& call);

  template <typename F>
  Status for_each_peer(F f);
  Slice slice_of(int rank, int64_t count) const;
  std::byte* slot(int peer) const { return scratch_.get() + static_cast<size_t>(peer) * kSlotBytes; }
  // parts_ = every peer's slot, and `mine` for this rank.
  void set_parts(const std::byte* mine);
  Status start_send(const void* data, size_t bytes, int peer);
  Status start_recv(void* data, size_t bytes, int peer);
  Status wait(const CollectiveCall& call);

  // A peer's part of one round. Larger tensors take several rounds.
  static constexpr size_t kSlotBytes = size_t{512} << 10;
  // Up to here one exchange of everything beats two of slices.
  static constexpr size_t kDirectBytes = size_t{32} << 10;

  MessageGroup group_;
  std::unique_ptr<std::byte[]> scratch_;  // a slot a rank; pages that no call has used cost nothing
  std::vector<const std::byte*> parts_;
  int tag_ = 0;
  unsigned num_calls_ = 0;
  Deadline deadline_;
  Backoff backoff_;
};

}  // namespace llm_dist::comm
