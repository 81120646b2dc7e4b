// What the ranks of a meeting send each other, and what they prove with it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "comm/host/setup.h"
#include "comm/host/socket.h"
#include "comm/tcp/hmac.h"
#include "comm/tcp/meeting.h"

namespace llm_dist::comm {

using Nonce = std::array<std::byte, 32>;

constexpr uint64_t kMeetingMagic = 0x314d4c4c4d444953;  // changes with the layout of anything below

struct Greeting {  // guest → host
  uint64_t magic = kMeetingMagic;
  int32_t rank = 0;
  int32_t size = 0;
  Nonce nonce{};
};
struct Challenge {  // host → guest
  uint64_t magic = kMeetingMagic;
  Nonce nonce{};
  Digest proof{};  // that the host knows the secret
};
struct Card {  // guest → host
  Digest proof{};
  std::array<char, 60> address{};
  uint32_t port = 0;
};
struct AnswerHead {  // host → guest, once all are there or it has failed; `bytes` follow
  Digest proof{};
  int32_t code = 0;  // StatusCode
  uint32_t bytes = 0;
};

// The proofs of one connection. A proof is good for its purpose and this connection only.
class Proofs {
 public:
  Proofs(const std::string& secret, const Greeting& greeting, const Nonce& host_nonce)
      : secret_(secret), transcript_(to_bytes(greeting) + to_bytes(host_nonce)) {}

  Digest of_host() const { return proof("host", ""); }
  Digest of_guest(const Card& card) const {
    return proof("guest", format("{} {}", card.address.data(), card.port));
  }
  Digest of_answer(int32_t code, const std::string& payload) const {
    return proof("answer", format("{} {}", code, payload));
  }
  // Hides the world's own secret on its way, and uncovers it.
  Secret covered(Secret secret) const {
    Digest pad = proof("cover", "");
    for (size_t i = 0; i < secret.size(); ++i) secret[i] ^= pad[i];
    return secret;
  }

 private:
  Digest proof(const char* purpose, const std::string& about) const {
    return hmac_sha256(std::as_bytes(std::span(secret_)), format("{}\n{}", purpose, transcript_ + about));
  }
  std::string secret_;
  std::string transcript_;
};

// Rank 0's part and the others'.
Result<SocketPlan> host_meeting(const MeetingPlan& plan, Deadline deadline);
Result<SocketPlan> join_meeting(const MeetingPlan& plan, Deadline deadline);

// The lines "port address" of all ranks.
std::string encode_endpoints(const std::vector<Endpoint>& endpoints);
Result<std::vector<Endpoint>> decode_endpoints(const std::string& text, int size);

}  // namespace llm_dist::comm
