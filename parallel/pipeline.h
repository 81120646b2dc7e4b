// Pipeline stages (Huang et al. 2019; Narayanan et al. 2021): activations go from stage to stage, sampled
// tokens return from the last stage to the first. Each has a communicator and a stream of its own, so that a
// stage computes one micro-batch while the previous one is still on its way, and so that the cycle last →
// first cannot lock the other one up.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "parallel/mesh.h"
#include "src/device/backend.h"

namespace llm_dist::parallel {

// Where a lane's sends are issued. A lane that receives has kOwnStream.
enum class SendOrder {
  kOwnStream,   // the sender's stream goes on at once
  kWithSender,  // before all that the sender's stream does afterwards
};

// Tensor groups wait for each other within their steps, in kernels. On a GPU those and the kernels started
// early behind them may have all the room there is. Were a send still to find room then, what it has for the
// next stage could be what another rank of that stage's group waits for, whose own send this rank waits for
// in turn, and no one would go on. So no step begins before what the last one sends has gone.
// A sender of a long message may wait for its receiver, and with it the next step. Tokens that other ranks
// wait for are not behind it as long as pp + 1 steps are in flight at most.
SendOrder send_order(const comm::Communicator& lane, int tp);

// A one-way lane between two ranks, with `depth` transfers under way at most.
class Lane {
 public:
  // max_bytes: of one transfer. peer: in the communicator's numbering.
  static Result<std::unique_ptr<Lane>> create(device::Backend& backend,
                                              comm::Communicator& communicator,
                                              int peer,
                                              int64_t max_bytes,
                                              int depth,
                                              SendOrder order,
                                              const std::string& name);

  // Of kOwnStream, copies `data` out in `from`'s order, then sends it, while `from` goes on. Otherwise sends
  // it in `from`'s order.
  void send(const Tensor& data, device::Stream& from);
  // Starts to receive the next transfer, of the shape and dtype of `like`. Transfers arrive in order.
  // Returns its number: 0, 1, 2, …
  uint64_t post_receive(const Tensor& like);
  // `into` waits until transfer `number` is here; the view is valid in `into`'s order until release(number).
  Tensor received(uint64_t number, device::Stream& into);
  // Everything that reads transfer `number` has been issued to `from`.
  void release(uint64_t number, device::Stream& from);

  device::Stream& stream() { return *stream_; }
  bool waits_on_device() const { return communicator_.waits_on_device(); }

 private:
  struct Slot {
    device::Buffer buffer;
    Tensor view;
    std::unique_ptr<device::Event> filled;
    std::unique_ptr<device::Event> emptied;
  };
  Lane(comm::Communicator& communicator, int peer, int64_t max_bytes, SendOrder order)
      : communicator_(communicator), peer_(peer), max_bytes_(max_bytes), order_(order) {}
  Slot& slot(uint64_t number) { return slots_[number % slots_.size()]; }

  comm::Communicator& communicator_;
  int peer_;
  int64_t max_bytes_;
  SendOrder order_;
  std::vector<Slot> slots_;
  uint64_t next_ = 0;
  std::unique_ptr<device::Stream> stream_;  // after the slots: it is joined before they go
};

}  // namespace llm_dist::parallel
