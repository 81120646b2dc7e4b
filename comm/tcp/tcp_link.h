// TcpLink: the connection to one peer, which all groups share. Messages go as frames; one that nobody waits
// for yet is kept, so that a group never blocks another behind it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/host/fd.h"
#include "src/base/status.h"

namespace llm_dist::comm {

struct FrameHeader {
  int32_t group = 0;  // kNoticeGroup: a notice
  int32_t tag = 0;
  uint64_t bytes = 0;
};
constexpr int32_t kNoticeGroup = -1;

// A send or a receive that a channel has started. The channel owns it; the link knows it until it is done.
struct TcpOperation {
  int32_t group = 0;
  int32_t tag = 0;
  int peer = 0;  // position in the group
  std::byte* data = nullptr;
  size_t bytes = 0;
  std::atomic<bool> done{false};
  Status error;  // read once done
};

// Any thread; nothing blocks.
class TcpLink {
 public:
  TcpLink(int rank, Fd fd);

  void start_send(TcpOperation& operation);
  void start_recv(TcpOperation& operation);
  void post_notice(std::span<const std::byte> notice);
  // Reads and writes what can be now.
  void pump();
  bool take_notice(std::string* notice);
  // Forgets an operation that is not done.
  void cancel(TcpOperation& operation);
  // Nothing more is sent. True once the peer has said so too.
  void finish_sending();
  bool peer_finished();

 private:
  struct Outgoing {
    FrameHeader header;
    const std::byte* data = nullptr;
    std::vector<std::byte> own;         // where `data` may be gone before it is sent
    TcpOperation* operation = nullptr;  // null: nobody waits
    size_t sent = 0;                    // header included
  };
  // A message that came before its receive.
  struct Early {
    FrameHeader header;
    std::vector<std::byte> bytes;
    bool complete = false;
  };
  enum class Sink : uint8_t { kHeader, kOperation, kEarly, kNotice, kNowhere };

  bool take_early(TcpOperation& operation);
  void write_out();
  bool write_front();
  void read_in();
  size_t take_staged(std::span<const std::byte> bytes);
  void begin_body();
  void add_body(std::span<const std::byte> bytes);
  std::span<std::byte> body_space();
  void end_body();
  void finish(TcpOperation& operation, Status error);
  void close(const std::string& why);
  std::vector<std::byte> spare_buffer(size_t bytes);
  Status wrong_length(const TcpOperation& operation, uint64_t sent) const;

  const int rank_;  // of the peer, in the world
  std::mutex mutex_;
  Fd fd_;
  std::string closed_;  // why nothing more can come or go
  bool peer_finished_ = false;
  // Oldest first. Vectors, because they are short and keep their memory.
  std::vector<Outgoing> outgoing_;
  std::vector<TcpOperation*> receives_;
  std::vector<Early> early_;  // the last may be incomplete
  std::vector<std::vector<std::byte>> spare_;
  std::deque<std::string> notices_;

  Sink sink_ = Sink::kHeader;
  FrameHeader header_;
  size_t filled_ = 0;  // of the header or the body
  TcpOperation* receiving_ = nullptr;
  std::string notice_;
  std::vector<std::byte> staged_;
};

}  // namespace llm_dist::comm
