#include "parallel/pipeline.h"

namespace llm_dist::parallel {
namespace {
void check_fits(const Tensor& data, int64_t max_bytes) {
  CHECK(data.is_contiguous() && data.bytes() <= max_bytes,
        "{} through a lane of {} bytes",
        data.to_string(),
        max_bytes);
}

Tensor like_in(const device::Buffer& buffer, const Tensor& like) {
  check_fits(like, buffer.bytes());
  Tensor view = like;
  view.data = buffer.data();
  return view;
}
}  // namespace

SendOrder send_order(const comm::Communicator& lane, int tp) {
  return tp > 1 && lane.moves_by_kernels() ? SendOrder::kWithSender : SendOrder::kOwnStream;
}

Result<std::unique_ptr<Lane>> Lane::create(device::Backend& backend,
                                           comm::Communicator& communicator,
                                           int peer,
                                           int64_t max_bytes,
                                           int depth,
                                           SendOrder order,
                                           const std::string& name) {
  std::unique_ptr<Lane> lane(new Lane(communicator, peer, max_bytes, order));
  for (int i = 0; i < (order == SendOrder::kOwnStream ? depth : 0); ++i) {
    Slot slot;
    ASSIGN_OR_RETURN(slot.buffer, backend.allocate(max_bytes, device::MemoryKind::kDevice));
    slot.filled = backend.make_event();
    slot.emptied = backend.make_event();
    lane->slots_.push_back(std::move(slot));
  }
  lane->stream_ = backend.make_stream(name);
  return lane;
}

void Lane::send(const Tensor& data, device::Stream& from) {
  if (order_ == SendOrder::kWithSender) {
    check_fits(data, max_bytes_);
    communicator_.send(data, peer_, from);
    return;
  }
  Slot& to = slot(next_++);
  Tensor view = like_in(to.buffer, data);
  from.wait(*to.emptied);
  from.copy(view, data);
  from.record(*to.filled);
  stream_->wait(*to.filled);
  communicator_.send(view, peer_, *stream_);
  stream_->record(*to.emptied);
}

uint64_t Lane::post_receive(const Tensor& like) {
  CHECK(order_ == SendOrder::kOwnStream, "a lane that sends");
  uint64_t number = next_++;
  Slot& to = slot(number);
  to.view = like_in(to.buffer, like);
  stream_->wait(*to.emptied);
  communicator_.recv(to.view, peer_, *stream_);
  stream_->record(*to.filled);
  return number;
}

Tensor Lane::received(uint64_t number, device::Stream& into) {
  Slot& from = slot(number);
  into.wait(*from.filled);
  return from.view;
}

void Lane::release(uint64_t number, device::Stream& from) { from.record(*slot(number).emptied); }

}  // namespace llm_dist::parallel
