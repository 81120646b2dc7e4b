// Rank 0's part of a meeting.
#include <poll.h>

#include <algorithm>
#include <list>
#include <optional>

#include "comm/host/own_address.h"
#include "comm/tcp/local_secret.h"
#include "comm/tcp/meeting.h"
#include "comm/tcp/meeting_wire.h"
#include "src/base/log.h"

namespace llm_dist::comm {
namespace {

constexpr size_t kMaxStrangers = 256;
// A rank of a starved machine needs its time; so many strangers may wait meanwhile. When there are more, the
// one that has waited longest makes room, but none before it had kUndisturbed.
constexpr auto kIntroductionLimit = std::chrono::seconds(30);
constexpr auto kUndisturbed = std::chrono::seconds(3);
constexpr auto kAnswerLimit = std::chrono::seconds(3);
constexpr auto kLookAgainAfter = std::chrono::milliseconds(200);

struct Guest {
  Fd fd;
  TimePoint since;
  Greeting greeting;
  Card card;
  size_t filled = 0;
  std::optional<Proofs> proofs;  // once challenged
  bool seated = false;
};

Result<Listener> open_door(const MeetingPlan& plan) {
  if (plan.listener_fd >= 0) return adopt_listener(Fd(plan.listener_fd));
  ASSIGN_OR_RETURN(std::vector<std::string> addresses, resolve_host(plan.address));
  std::string address = addresses.front();
  // Debian gives a host's own name the address 127.0.1.1; elsewhere the name leads to its real one.
  bool by_name = is_loopback(address) && !is_loopback(plan.address) && plan.address != "localhost";
  auto listener = listen_at(by_name ? "0.0.0.0" : address, plan.port);
  if (listener.ok()) return listener;
  return failed_precondition(
      format("rank 0 cannot wait for the others at {} port {} ({}): --master-addr is an address of rank 0's "
             "host, and "
             "--master-port a free port there",
             plan.address,
             plan.port,
             listener.status().message()));
}

class Host {
 public:
  Host(const MeetingPlan& plan, std::string secret, Listener door, Fd offer)
      : plan_(plan),
        secret_(std::move(secret)),
        door_(std::move(door)),
        offer_(std::move(offer)),
        seats_(static_cast<size_t>(plan.size), nullptr) {}

  // Seats everybody. An error is every guest's too.
  Status seat_all(Deadline deadline) {
    while (failure_.ok() && !missing().empty()) {
      if (deadline.expired()) return deadline_exceeded(who_is_missing());
      RETURN_IF_ERROR(wait(deadline));
      if (offer_.valid()) hand_over_secret(offer_, local_secret());
      RETURN_IF_ERROR(let_in());
      guests_.remove_if([&](Guest& guest) { return has_left(guest); });
    }
    return failure_;
  }
  Result<SocketPlan> introduce_all();
  void send_home(const Status& cause) {
    for (Guest& guest : guests_)
      if (guest.seated) answer(guest, static_cast<int32_t>(cause.code()), cause.message());
  }

 private:
  // With an offer, the secret is one of ours.
  Secret local_secret() const {
    Secret secret{};
    CHECK(from_bytes(secret_, &secret));
    return secret;
  }
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int r = 1; r < plan_.size; ++r)
      if (seats_[static_cast<size_t>(r)] == nullptr) ranks.push_back(r);
    return ranks;
  }
  std::string who_is_missing() const {
    std::string names;
    for (int r : missing()) names += format("{}{}", names.empty() ? "" : ", ", r);
    return format(
        "{} of {} ranks are missing at {} port {}: {}. Are they started, and does the address lead here?",
        missing().size(),
        plan_.size,
        plan_.address,
        door_.endpoint.port,
        names);
  }
  Status wait(Deadline deadline);
  Status let_in();
  bool full() const { return guests_.size() >= kMaxStrangers + seats_.size(); }
  std::list<Guest>::const_iterator longest_unseated() const {
    return std::ranges::find_if(guests_, [](const Guest& guest) { return !guest.seated; });
  }
  // Nobody is let in, and nobody has been silent for so long that another may take the place.
  bool crowded() const { return full() && Clock::now() - longest_unseated()->since < kUndisturbed; }
  bool has_left(Guest& guest);
  bool advance(Guest& guest);
  bool challenge(Guest& guest);
  bool seat(Guest& guest);
  std::string reachable_address(bool* only_here) const;
  static void answer(const Guest& guest, int32_t code, const std::string& payload);

  const MeetingPlan& plan_;
  std::string secret_;
  Listener door_;
  Fd offer_;
  std::list<Guest> guests_;
  std::vector<Guest*> seats_;  // by rank; rank 0's stays empty
  Status failure_;
};

Status Host::wait(Deadline deadline) {
  std::vector<pollfd> entries{{.fd = door_.fd.get(), .events = POLLIN},
                              {.fd = offer_.get(), .events = POLLIN}};
  if (crowded()) entries[0].events = 0;
  for (const Guest& guest : guests_) entries.push_back({.fd = guest.fd.get(), .events = POLLIN});
  auto next_look = Deadline::at(std::min(deadline.when(), Clock::now() + kLookAgainAfter));
  if (::poll(entries.data(), entries.size(), poll_timeout_ms(next_look)) < 0 && errno != EINTR)
    return unavailable("poll failed while waiting for the other ranks");
  return ok_status();
}

Status Host::let_in() {
  while (!crowded()) {
    ASSIGN_OR_RETURN(Fd fd, accept_one(door_));
    if (!fd.valid()) break;
    if (full()) guests_.erase(longest_unseated());
    guests_.push_back({.fd = std::move(fd), .since = Clock::now()});
  }
  return ok_status();
}

// True when the connection is of no more use.
bool Host::has_left(Guest& guest) {
  bool stays = advance(guest);
  if (stays && (guest.seated || Clock::now() - guest.since < kIntroductionLimit)) return false;
  if (!guest.seated)
    log_warning("refused a connection to {}: not a rank of this launch", to_string(door_.endpoint));
  if (guest.seated) {
    log_warning("rank {} came and left again", guest.greeting.rank);
    std::replace(seats_.begin(), seats_.end(), &guest, static_cast<Guest*>(nullptr));
  }
  return true;
}

// Reads on; false when the connection has ended or does not belong here.
bool Host::advance(Guest& guest) {
  while (true) {
    std::span<std::byte> wanted = guest.proofs ? std::as_writable_bytes(std::span(&guest.card, 1))
                                               : std::as_writable_bytes(std::span(&guest.greeting, 1));
    std::byte beyond{};
    if (guest.seated) wanted = std::span(&beyond, 1);  // nothing more is due: it can only end
    size_t filled = guest.seated ? 0 : guest.filled;
    IoResult result = read_some(guest.fd, wanted.subspan(filled));
    if (result.state == IoState::kWouldBlock) return true;
    if (result.state == IoState::kClosed || guest.seated) return false;
    guest.filled += result.bytes;
    if (guest.filled < wanted.size()) continue;
    guest.filled = 0;
    bool fine = guest.proofs ? seat(guest) : challenge(guest);
    if (!fine) return false;
  }
}

bool Host::challenge(Guest& guest) {
  if (guest.greeting.magic != kMeetingMagic) return false;
  auto nonce = draw_secret();
  if (!nonce.ok()) return false;
  guest.proofs.emplace(secret_, guest.greeting, *nonce);
  Challenge challenge{.nonce = *nonce, .proof = guest.proofs->of_host()};
  return write_some(guest.fd, std::as_bytes(std::span(&challenge, 1))).bytes == sizeof challenge;
}

bool Host::seat(Guest& guest) {
  guest.card.address.back() = '\0';
  if (!secrets_equal(guest.card.proof, guest.proofs->of_guest(guest.card))) return false;
  const Greeting& greeting = guest.greeting;
  bool fits = greeting.size == plan_.size && greeting.rank > 0 && greeting.rank < plan_.size;
  if (!fits)
    failure_ =
        invalid_argument(format("rank {} was started for {} ranks and rank 0 for {}: nodes or ranks per node "
                                "differ between the commands",
                                greeting.rank,
                                greeting.size,
                                plan_.size));
  Guest** place = fits ? &seats_[static_cast<size_t>(greeting.rank)] : nullptr;
  if (fits && *place != nullptr)
    failure_ =
        invalid_argument(format("two processes say that they are rank {}: from {} and {}; does --node-rank "
                                "differ from node to node?",
                                greeting.rank,
                                (*place)->card.address.data(),
                                guest.card.address.data()));
  guest.seated = true;
  if (fits && *place == nullptr) *place = &guest;
  return true;
}

// Where rank 0 is found, by the way that its guests came; on the loopback only if all did.
std::string Host::reachable_address(bool* only_here) const {
  std::string address;
  *only_here = true;
  for (const Guest& guest : guests_) {
    auto local = local_address(guest.fd);
    if (!guest.seated || !local.ok()) continue;
    if (address.empty() || (*only_here && !is_loopback(*local))) address = *local;
    *only_here = *only_here && is_loopback(*local);
  }
  return address;
}

Result<SocketPlan> Host::introduce_all() {
  SocketPlan sockets;
  bool only_here = true;
  std::string address = reachable_address(&only_here);
  if (!plan_.interface_name.empty()) {
    ASSIGN_OR_RETURN(address, interface_address(plan_.interface_name));
  }
  ASSIGN_OR_RETURN(sockets.listener, listen_at(address));
  ASSIGN_OR_RETURN(sockets.secret, draw_secret());
  sockets.endpoints.push_back(sockets.listener.endpoint);
  for (int r = 1; r < plan_.size; ++r) {
    const Card& card = seats_[static_cast<size_t>(r)]->card;
    Endpoint endpoint{.address = card.address.data(), .port = static_cast<uint16_t>(card.port)};
    // A loopback address means this host, which ranks elsewhere know by another one.
    if (!only_here && is_loopback(endpoint.address)) endpoint.address = address;
    sockets.endpoints.push_back(endpoint);
  }
  std::string endpoints = encode_endpoints(sockets.endpoints);
  for (Guest& guest : guests_)
    if (guest.seated) answer(guest, 0, to_bytes(guest.proofs->covered(sockets.secret)) + endpoints);
  return sockets;
}

void Host::answer(const Guest& guest, int32_t code, const std::string& payload) {
  AnswerHead head{.proof = guest.proofs->of_answer(code, payload),
                  .code = code,
                  .bytes = static_cast<uint32_t>(payload.size())};
  std::string bytes = to_bytes(head) + payload;
  Status sent = write_fully(guest.fd, std::as_bytes(std::span(bytes)), Deadline::after(kAnswerLimit));
  if (!sent.ok()) log_warning("rank {} does not read its answer: {}", guest.greeting.rank, sent.message());
}

}  // namespace

Result<SocketPlan> host_meeting(const MeetingPlan& plan, Deadline deadline) {
  ASSIGN_OR_RETURN(Listener door, open_door(plan));
  std::string secret = plan.secret;
  Fd offer;
  if (secret.empty()) {
    ASSIGN_OR_RETURN(Secret drawn, draw_secret());
    secret = to_bytes(drawn);
    ASSIGN_OR_RETURN(offer, offer_local_secret(door.endpoint.port));
  }
  Host host(plan, std::move(secret), std::move(door), std::move(offer));
  Status seated = host.seat_all(deadline);
  Result<SocketPlan> sockets = seated.ok() ? host.introduce_all() : Result<SocketPlan>(seated);
  if (!sockets.ok()) host.send_home(sockets.status());
  return sockets;
}

}  // namespace llm_dist::comm
