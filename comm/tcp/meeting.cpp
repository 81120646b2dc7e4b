#include "comm/tcp/meeting.h"

#include <algorithm>
#include <sstream>
#include <thread>

#include "comm/host/own_address.h"
#include "comm/tcp/local_secret.h"
#include "comm/tcp/meeting_wire.h"

namespace llm_dist::comm {
namespace {

// An address whose packets vanish must not keep the next one from being tried.
constexpr auto kOneAddress = std::chrono::seconds(5);
constexpr auto kTryAgainAfter = std::chrono::milliseconds(100);
// What the host has to tell when its own time is over still arrives.
constexpr auto kPatience = std::chrono::seconds(5);

// The way to rank 0, once it answers.
struct Encounter {
  Fd fd;
  std::string secret;
};

Result<Nonce> draw_nonce() { return draw_secret(); }

template <typename T>
Status send_whole(const Fd& fd, const T& value, Deadline deadline) {
  return write_fully(fd, std::as_bytes(std::span(&value, 1)), deadline);
}
template <typename T>
Status read_whole(const Fd& fd, T& value, Deadline deadline) {
  return read_fully(fd, std::as_writable_bytes(std::span(&value, 1)), deadline);
}

Result<Encounter> try_once(const MeetingPlan& plan,
                           const std::vector<std::string>& addresses,
                           Deadline deadline) {
  Encounter encounter{.fd = Fd(), .secret = plan.secret};
  if (plan.secret.empty()) {
    ASSIGN_OR_RETURN(Secret secret, take_local_secret(plan.port, deadline));
    encounter.secret = to_bytes(secret);
  }
  Status last = unavailable("no address");
  for (const std::string& address : addresses) {
    auto limit = Deadline::at(std::min(deadline.when(), Clock::now() + kOneAddress));
    auto connected = connect_to({.address = address, .port = plan.port}, limit);
    if (!connected.ok()) {
      bool slow = connected.status().code() == StatusCode::kDeadlineExceeded;
      last = slow ? unavailable(connected.status().message()) : connected.status();
      continue;
    }
    encounter.fd = std::move(connected).value();
    return encounter;
  }
  return last;
}

Result<Encounter> find_host(const MeetingPlan& plan, Deadline deadline) {
  ASSIGN_OR_RETURN(std::vector<std::string> addresses, resolve_host(plan.address));
  while (true) {
    auto encounter = try_once(plan, addresses, deadline);
    if (encounter.ok() || encounter.status().code() != StatusCode::kUnavailable) return encounter;
    if (Deadline::after(kTryAgainAfter).when() > deadline.when())
      return deadline_exceeded(
          format("rank 0 is not at {} port {} ({}): is it started, is the address right?",
                 plan.address,
                 plan.port,
                 encounter.status().message()));
    std::this_thread::sleep_for(kTryAgainAfter);
  }
}

// Where this rank will be found. One that met rank 0 on the loopback of a host that has a name may have to be
// found from elsewhere too.
Result<Listener> listen_for_peers(const MeetingPlan& plan, const Fd& to_host) {
  if (!plan.interface_name.empty()) {
    ASSIGN_OR_RETURN(std::string address, interface_address(plan.interface_name));
    return listen_at(address);
  }
  ASSIGN_OR_RETURN(std::string address, local_address(to_host));
  bool by_name = is_loopback(address) && !is_loopback(plan.address) && plan.address != "localhost";
  if (!by_name) return listen_at(address);
  ASSIGN_OR_RETURN(Listener everywhere, listen_at("0.0.0.0"));
  everywhere.endpoint.address = address;
  return everywhere;
}

Card card_of(const Endpoint& endpoint) {
  Card card{.port = endpoint.port};
  endpoint.address.copy(card.address.data(), card.address.size() - 1);
  return card;
}

Result<std::string> read_answer(const Fd& fd, const Proofs& proofs, Deadline deadline) {
  constexpr uint32_t kMost = 1 << 24;
  AnswerHead head;
  Status status = read_whole(fd, head, deadline);
  std::string payload;
  if (status.ok() && head.bytes > kMost) return data_loss("rank 0's answer is of another version");
  payload.resize(head.bytes);
  if (status.ok()) status = read_fully(fd, std::as_writable_bytes(std::span(payload)), deadline);
  if (!status.ok()) return status.with_context("waiting for the other ranks with rank 0");
  if (!secrets_equal(head.proof, proofs.of_answer(head.code, payload)))
    return data_loss("rank 0's answer was changed on its way");
  if (head.code != 0) return Status(static_cast<StatusCode>(head.code), payload);
  return payload;
}

}  // namespace

std::string encode_endpoints(const std::vector<Endpoint>& endpoints) {
  std::string text;
  for (const Endpoint& endpoint : endpoints) text += format("{} {}\n", endpoint.port, endpoint.address);
  return text;
}

Result<std::vector<Endpoint>> decode_endpoints(const std::string& text, int size) {
  std::vector<Endpoint> endpoints;
  std::istringstream lines(text);
  Endpoint endpoint;
  while (lines >> endpoint.port >> endpoint.address) endpoints.push_back(endpoint);
  if (endpoints.size() != static_cast<size_t>(size))
    return data_loss("rank 0 did not say where every rank is");
  return endpoints;
}

Result<SocketPlan> join_meeting(const MeetingPlan& plan, Deadline deadline) {
  Deadline patient = Deadline::at(deadline.when() + kPatience);
  ASSIGN_OR_RETURN(Encounter host, find_host(plan, deadline));
  std::string where = format("rank 0 at {} port {}", plan.address, plan.port);
  Greeting greeting{.rank = plan.rank, .size = plan.size};
  ASSIGN_OR_RETURN(greeting.nonce, draw_nonce());
  Challenge challenge;
  Status status = send_whole(host.fd, greeting, deadline);
  if (status.ok()) status = read_whole(host.fd, challenge, deadline);
  if (!status.ok()) return status.with_context(where);
  Proofs proofs(host.secret, greeting, challenge.nonce);
  if (challenge.magic != kMeetingMagic)
    return failed_precondition(format("{} is another program, or another version of this one", where));
  if (!secrets_equal(challenge.proof, proofs.of_host()))
    return failed_precondition(format("{} has another launch secret than rank {}", where, plan.rank));

  SocketPlan sockets;
  ASSIGN_OR_RETURN(sockets.listener, listen_for_peers(plan, host.fd));
  Card card = card_of(sockets.listener.endpoint);
  card.proof = proofs.of_guest(card);
  RETURN_IF_ERROR(send_whole(host.fd, card, deadline).with_context(where));
  ASSIGN_OR_RETURN(std::string payload, read_answer(host.fd, proofs, patient));
  Secret covered{};
  if (payload.size() < covered.size() || !from_bytes(payload.substr(0, covered.size()), &covered))
    return data_loss("rank 0 sent no secret");
  sockets.secret = proofs.covered(covered);
  ASSIGN_OR_RETURN(sockets.endpoints, decode_endpoints(payload.substr(covered.size()), plan.size));
  return sockets;
}

Result<SocketPlan> meet(const MeetingPlan& plan, Deadline deadline) {
  CHECK(plan.rank >= 0 && plan.rank < plan.size, "rank {} of {}", plan.rank, plan.size);
  auto addresses = resolve_host(plan.address);
  if (!addresses.ok())
    return unavailable(
        format("ranks meet at rank 0's host, and {}: give its address as --master-addr or MASTER_ADDR",
               addresses.status().message()));
  if (plan.secret.empty()) {
    bool one_host = std::all_of(addresses->begin(), addresses->end(), is_loopback);
    if (!one_host)
      return invalid_argument(format(
          "ranks that meet at {} need a secret that guards their sockets: give every rank the same one in "
          "LLM_DIST_LAUNCH_SECRET (openssl rand -hex 32), or in a file that only you can read with "
          "--launch-secret-file",
          plan.address));
  }
  if (!plan.interface_name.empty())  // before anybody waits
    RETURN_IF_ERROR(interface_address(plan.interface_name).status());
  return plan.rank == 0 ? host_meeting(plan, deadline) : join_meeting(plan, deadline);
}

}  // namespace llm_dist::comm
