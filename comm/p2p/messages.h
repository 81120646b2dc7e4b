// Kernels over peer memory for messages from one rank to another, of any size.
#pragma once

#include "comm/p2p/all_reduce.h"

namespace llm_dist::comm {

struct Message {
  void* data = nullptr;  // any address; the sender's and the receiver's need not be alike
  int64_t bytes = 0;     // at most 1 GiB
  int peer = 0;          // another rank
  bool as_packets = false;
  uint64_t number = 0;  // MessageGates::number_to, for whoever sends
};

// Whoever sends and whoever receives agree on bytes and as_packets; messages from one to the other arrive in
// the order in which they were sent. Those of one direction are on one stream at a time on either side. What
// goes to one peer and what comes from it, or goes to another one, do not wait for each other. Return the
// launch's error.
cudaError_t send_message(const PeerView& peers, const Message& message, cudaStream_t stream);
cudaError_t receive_message(const PeerView& peers, const Message& message, cudaStream_t stream);

// See load_all_reduce_kernels.
cudaError_t load_message_kernels();

}  // namespace llm_dist::comm
