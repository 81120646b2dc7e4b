#include "comm/host/rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <set>
#include <utility>

#include "comm/host/own_address.h"
#include "src/base/log.h"

namespace llm_dist::comm {
namespace {

constexpr uint64_t kMagic = 0x314f4c4c4d444953;  // changes with the layout of anything sent
constexpr auto kWelcome = std::byte{0x57};
// How many may be silent besides the ranks, and how long undisturbed. Fewer have as long as the launch has: a
// rank that gets no processor time is no intruder.
constexpr size_t kMaxStrangers = 64;
constexpr auto kUndisturbed = std::chrono::seconds(3);

constexpr const char* kUnreachable =
    "name the network that joins the hosts with --interface, or let their firewalls pass TCP between them";

struct Hello {
  uint64_t magic = kMagic;
  int32_t rank = 0;
  int32_t lane = 0;
  Secret secret{};
};

// A connection that has not yet shown who it is.
struct Stranger {
  Fd fd;
  Hello hello;
  size_t filled = 0;
  TimePoint since;
};

std::string encode(const Endpoint& endpoint) { return format("{} {}", endpoint.port, endpoint.address); }

Endpoint decode(const std::string& text) {
  size_t space = text.find(' ');
  if (space == std::string::npos) return {};
  return {.address = text.substr(space + 1), .port = static_cast<uint16_t>(std::stoi(text))};
}

// Where the ranks have met they reach rank 0; where they have not, its host has to guess.
Result<std::string> offered_address(const HostWorld& world, bool one_host) {
  if (!world.interface_name.empty()) return interface_address(world.interface_name);
  if (!world.root_address.empty()) return world.root_address;
  if (one_host) return std::string("127.0.0.1");
  return default_address(this_network());
}

Result<std::string> first_offer(const HostWorld& world, bool one_host) {
  if (world.rank != 0) return std::string();
  ASSIGN_OR_RETURN(Secret secret, draw_secret());
  ASSIGN_OR_RETURN(std::string address, offered_address(world, one_host));
  return to_bytes(secret) + address;
}

Result<std::string> listen_near(const HostWorld& world, const std::string& root_address, Listener* listener) {
  std::string address = root_address;
  if (world.rank != 0) {
    bool named = !world.interface_name.empty();
    ASSIGN_OR_RETURN(address,
                     named ? interface_address(world.interface_name) : address_towards(root_address));
  }
  ASSIGN_OR_RETURN(*listener, listen_at(address));
  return encode(listener->endpoint);
}

// Lets strangers say hello; welcomed connections are put in their place.
class Reception {
 public:
  Reception(const SocketPlan& plan, const std::vector<PeerLane>& expected)
      : plan_(plan), expected_(expected), accepted_(expected.size()) {}

  Result<std::vector<Fd>> run(Deadline deadline) {
    while (missing_ > 0) {
      RETURN_IF_ERROR(wait(deadline));
      RETURN_IF_ERROR(take_in());
      std::erase_if(strangers_, [&](Stranger& stranger) { return settled(stranger); });
      if (missing_ > 0 && deadline.expired()) return deadline_exceeded(missing_ranks());
    }
    return std::move(accepted_);
  }

 private:
  Status wait(Deadline deadline) {
    std::vector<pollfd> entries{{.fd = plan_.listener.fd.get(), .events = POLLIN}};
    if (crowded()) entries[0].events = 0;
    for (const auto& stranger : strangers_) entries.push_back({.fd = stranger.fd.get(), .events = POLLIN});
    auto next_look = Deadline::at(std::min(deadline.when(), Clock::now() + std::chrono::milliseconds(200)));
    if (::poll(entries.data(), entries.size(), poll_timeout_ms(next_look)) < 0 && errno != EINTR)
      return unavailable("poll failed while waiting for the other ranks");
    return ok_status();
  }

  Status take_in() {
    while (!crowded()) {
      ASSIGN_OR_RETURN(Fd fd, accept_one(plan_.listener));
      if (!fd.valid()) break;
      if (full()) strangers_.pop_front();
      strangers_.push_back({.fd = std::move(fd), .hello = {}, .since = Clock::now()});
    }
    return ok_status();
  }

  bool full() const { return strangers_.size() >= kMaxStrangers + missing_; }
  // Nobody is let in, and nobody has been silent for so long that another may take the place.
  bool crowded() const { return full() && Clock::now() - strangers_.front().since < kUndisturbed; }

  // True when the connection needs no more attention: welcomed or turned away.
  bool settled(Stranger& stranger) {
    auto bytes = std::as_writable_bytes(std::span(&stranger.hello, 1));
    IoResult result = read_some(stranger.fd, bytes.subspan(stranger.filled));
    stranger.filled += result.bytes;
    if (stranger.filled == bytes.size()) {
      welcome(stranger);
      return true;
    }
    return result.state == IoState::kClosed;
  }

  void welcome(Stranger& stranger) {
    const Hello& hello = stranger.hello;
    PeerLane who{.rank = hello.rank, .lane = hello.lane};
    auto place = std::find(expected_.begin(), expected_.end(), who);
    auto index = static_cast<size_t>(place - expected_.begin());
    bool known = hello.magic == kMagic && secrets_equal(hello.secret, plan_.secret);
    if (!known || place == expected_.end() || accepted_[index].valid()) {
      log_warning("refused a connection to {}: not a rank of this launch",
                  to_string(plan_.listener.endpoint));
      return;
    }
    if (write_some(stranger.fd, std::span(&kWelcome, 1)).state != IoState::kProgress) return;
    accepted_[index] = std::move(stranger.fd);
    --missing_;
  }

  std::string missing_ranks() const {
    std::set<int> missing;
    for (size_t i = 0; i < expected_.size(); ++i)
      if (!accepted_[i].valid()) missing.insert(expected_[i].rank);
    std::string ranks;
    for (int rank : missing) ranks += format("{}{}", ranks.empty() ? "" : ", ", rank);
    return format("no connection came from rank{} {} to the address that was offered, {}: {}",
                  missing.size() == 1 ? "" : "s",
                  ranks,
                  to_string(plan_.listener.endpoint),
                  kUnreachable);
  }

  const SocketPlan& plan_;
  const std::vector<PeerLane>& expected_;
  std::vector<Fd> accepted_;
  std::deque<Stranger> strangers_;  // who came first stands first
  size_t missing_ = expected_.size();
};

}  // namespace

Result<SocketPlan> plan_sockets(const HostWorld& world, bool listen_here) {
  SocketPlan plan;
  bool one_host = std::all_of(
      world.hosts.begin(), world.hosts.end(), [&](const auto& host) { return host == world.hosts.front(); });
  ASSIGN_OR_RETURN(auto offers, gather_or_fail(world, first_offer(world, one_host)));
  const std::string& root = offers.front();
  if (!from_bytes(root.substr(0, plan.secret.size()), &plan.secret))
    return data_loss("rank 0 sent no secret");
  std::string root_address = root.substr(plan.secret.size());

  Result<std::string> mine = std::string();
  if (listen_here) mine = listen_near(world, root_address, &plan.listener);
  ASSIGN_OR_RETURN(auto endpoints, gather_or_fail(world, mine));
  for (const auto& text : endpoints) plan.endpoints.push_back(decode(text));
  return plan;
}

Result<Fd> connect_peer(const SocketPlan& plan, int own_rank, PeerLane peer, Deadline deadline) {
  const Endpoint& endpoint = plan.endpoints[static_cast<size_t>(peer.rank)];
  auto connected = connect_to(endpoint, deadline);
  if (!connected.ok())
    return Status(connected.status().code(),
                  format("no connection to rank {} at the address that it offered: {}: {}",
                         peer.rank,
                         connected.status().message(),
                         kUnreachable));
  Fd fd = std::move(connected).value();
  Hello hello{.rank = own_rank, .lane = peer.lane, .secret = plan.secret};
  auto answer = std::byte{0};
  Status status = write_fully(fd, std::as_bytes(std::span(&hello, 1)), deadline);
  if (status.ok()) status = read_fully(fd, std::span(&answer, 1), deadline);
  if (status.ok() && answer != kWelcome) status = unavailable("not a rank of this program answers");
  if (!status.ok()) return status.with_context(format("rank {} at {}", peer.rank, to_string(endpoint)));
  return fd;
}

Result<std::vector<Fd>> accept_peers(const SocketPlan& plan,
                                     const std::vector<PeerLane>& expected,
                                     Deadline deadline) {
  return Reception(plan, expected).run(deadline);
}

}  // namespace llm_dist::comm
