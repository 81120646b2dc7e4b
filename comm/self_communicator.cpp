#include "comm/self_communicator.h"

namespace llm_dist::comm {

bool SelfCommunicator::refused(device::Stream& stream) const {
  if (!error_.failed()) return false;
  stream.fail(error_.get());
  return true;
}

void SelfCommunicator::copy_unless_same(const Tensor& in, const Tensor& out, device::Stream& stream) {
  if (refused(stream) || in.data == out.data) return;
  CHECK_EQ(in.dtype, out.dtype);
  stream.copy(out, in);
}

void SelfCommunicator::all_reduce(const Tensor&, ReduceOp, device::Stream& stream) { (void)refused(stream); }
void SelfCommunicator::all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) {
  copy_unless_same(in, out, stream);
}
void SelfCommunicator::reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp, device::Stream& stream) {
  copy_unless_same(in, out, stream);
}
void SelfCommunicator::broadcast(const Tensor&, int root, device::Stream& stream) {
  CHECK_EQ(root, 0);
  (void)refused(stream);
}
void SelfCommunicator::send(const Tensor&, int peer, device::Stream&) {
  CHECK(false, "send to {} in a group of one", peer);
}
void SelfCommunicator::recv(const Tensor&, int peer, device::Stream&) {
  CHECK(false, "recv from {} in a group of one", peer);
}
void SelfCommunicator::all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) {
  copy_unless_same(in, out, stream);
}

}  // namespace llm_dist::comm
