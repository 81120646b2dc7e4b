// HostGate on a GPU: a host function tells the host, and a stream waits for a word of pinned memory.
#pragma once

#include <memory>

#include "comm/host_gate.h"
#include "comm/p2p/stream_wait.h"
#include "src/base/status.h"

namespace llm_dist::comm {

class CudaHostGate : public HostGate {
 public:
  // failed_precondition where streams cannot wait.
  static Result<std::unique_ptr<HostGate>> make(int device_index);
  ~CudaHostGate() override;

  bool takes(device::Stream& stream) const override;
  void tell_host(device::Stream& stream, std::function<void()> call) override;
  void finish(Deadline deadline) override;
  void wait(device::Stream& stream, uint64_t number) override;
  void open(uint64_t number) override;

 private:
  explicit CudaHostGate(int device_index) : device_index_(device_index) {}

  int device_index_;
  uint64_t* opened_ = nullptr;  // pinned
  // What makes the calls, when `here_` of the stream in question has come.
  cudaStream_t caller_ = nullptr;
  cudaEvent_t here_ = nullptr;
  StreamWait stream_wait_;
};

}  // namespace llm_dist::comm
