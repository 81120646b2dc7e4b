// SocketChannel: the channel as a rank sees it that shares no memory with rank 0.
#pragma once

#include "comm/host/control_lane.h"
#include "comm/host/host_channel.h"
#include "comm/host/local_abort.h"
#include "comm/host/message_assembler.h"
#include "comm/host/socket.h"

namespace llm_dist::comm {

class SocketChannel final : public HostChannel {
 public:
  SocketChannel(HostChannelInfo info, const HostChannelOptions& options, Fd data, Fd control);

  const HostChannelInfo& info() const override { return info_; }
  Status publish(std::span<const std::byte> message, Deadline deadline) override;
  Result<std::span<const std::byte>> receive(Deadline deadline) override;
  Status report(std::span<const std::byte> bytes) override;
  Result<std::optional<HostReport>> try_take_report() override;
  void abort(const Status& cause) override;

 private:
  Status wait_for_data(Deadline deadline);
  void take_control_messages();
  Status closed_by_root();

  HostChannelInfo info_;
  Fd data_;
  ControlLane control_;
  LocalAbort abort_;
  MessageAssembler assembler_;
};

}  // namespace llm_dist::comm
