#include "comm/host/setup.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace llm_dist::comm {
namespace {

constexpr char kFine = '+';

// '+' and the payload, or the code as one byte and the message.
std::string encode(const Result<std::string>& mine) {
  if (mine.ok()) return kFine + *mine;
  return static_cast<char>(mine.status().code()) + mine.status().message();
}

}  // namespace

Result<Secret> draw_secret() {
  Secret secret;
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    return internal_error(format("getrandom: {}", std::strerror(errno)));
  return secret;
}

bool secrets_equal(const Secret& a, const Secret& b) {
  auto difference = std::byte{0};
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{0};
}

Status check_world(const HostWorld& world) {
  if (world.size < 1 || world.rank < 0 || world.rank >= world.size)
    return invalid_argument(format("rank {} of {}", world.rank, world.size));
  if (world.hosts.size() != static_cast<size_t>(world.size))
    return invalid_argument(format("{} host names for {} ranks", world.hosts.size(), world.size));
  if (world.size > 1 && !world.all_gather) return invalid_argument("a world of ranks needs all_gather");
  return ok_status();
}

Result<std::vector<std::string>> gather_or_fail(const HostWorld& world, const Result<std::string>& mine) {
  if (world.size == 1) {
    if (!mine.ok()) return mine.status();
    return std::vector<std::string>{*mine};
  }
  ASSIGN_OR_RETURN(auto all, world.all_gather(encode(mine)));
  if (all.size() != static_cast<size_t>(world.size))
    return internal_error(format("all_gather gave {} parts for {} ranks", all.size(), world.size));
  for (int rank = 0; rank < world.size; ++rank) {
    auto& part = all[static_cast<size_t>(rank)];
    if (part.empty()) return data_loss(format("rank {} sent nothing during setup", rank));
    char tag = part.front();
    part.erase(0, 1);
    if (tag != kFine)
      return Status(static_cast<StatusCode>(tag), std::move(part)).with_context(format("rank {}", rank));
  }
  return all;
}

Status agree(const HostWorld& world, const Status& mine) {
  return gather_or_fail(world, mine.ok() ? Result<std::string>(std::string()) : Result<std::string>(mine))
      .status();
}

}  // namespace llm_dist::comm
