#include "comm/thread/thread_group.h"

#include <cstring>

namespace llm_dist::comm {
ThreadGroup::ThreadGroup(std::string name, std::vector<int> world_ranks)
    : name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      calls_(world_ranks_.size()),
      present_(world_ranks_.size()),
      mailboxes_(world_ranks_.size() * world_ranks_.size()) {}

Status ThreadGroup::fail(Status cause) {
  if (error_.ok()) error_ = std::move(cause);
  changed_.notify_all();
  return error_;
}

std::string ThreadGroup::missing_ranks() const {
  std::string missing;
  for (size_t r = 0; r < present_.size(); ++r) {
    if (present_[r]) continue;
    missing += format("{}{}", missing.empty() ? "" : ", ", world_ranks_[r]);
  }
  return missing;
}

Status ThreadGroup::compare_calls() const {
  for (size_t r = 1; r < calls_.size(); ++r) {
    if (calls_[r].matches(calls_[0])) continue;
    return internal_error(format("group {}: rank {} is in {} while rank {} is in {}",
                                 name_,
                                 world_ranks_[0],
                                 to_string(calls_[0]),
                                 world_ranks_[r],
                                 to_string(calls_[r])));
  }
  return {};
}

// What is done counts more than an error that came with it: either all ranks go on or none.
template <typename Done>
Status ThreadGroup::wait(std::unique_lock<std::mutex>& lock, Deadline deadline, Done done) {
  changed_.wait_until(lock, deadline.when(), [&] { return done() || !error_.ok(); });
  if (done()) return {};
  if (!error_.ok()) return error_;
  return deadline_exceeded("");
}

Status ThreadGroup::meet(int rank, const CollectiveCall& call, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!error_.ok()) return error_;
  auto index = static_cast<size_t>(rank);
  CHECK(!present_[index], "rank {} of group {} is in two calls at once", rank, name_);
  calls_[index] = call;
  present_[index] = true;
  uint64_t meeting = meetings_;
  if (++num_present_ == size()) {
    Status alike = compare_calls();
    if (!alike.ok()) return fail(std::move(alike));
    num_present_ = 0;
    present_.assign(present_.size(), false);
    ++meetings_;
    changed_.notify_all();
    return {};
  }
  // Sleeping, not yielding: where cores are fewer than threads, a yield costs the others' whole time slices.
  Status status = wait(lock, deadline, [&] { return meetings_ != meeting; });
  if (status.ok() || !error_.ok()) return status;
  return fail(deadline_exceeded(
      format("{} in group {}: no word from rank {}", to_string(call), name_, missing_ranks())));
}

void ThreadGroup::leave() {
  std::unique_lock lock(mutex_);
  uint64_t parting = partings_;
  if (++num_left_ == size()) {
    num_left_ = 0;
    ++partings_;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return partings_ != parting; });
}

ThreadGroup::Mailbox& ThreadGroup::mailbox(int from, int to) {
  return mailboxes_[static_cast<size_t>(from) * world_ranks_.size() + static_cast<size_t>(to)];
}

Status ThreadGroup::send(int rank, const CollectiveCall& call, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!error_.ok()) return error_;
  Mailbox& mail = mailbox(rank, call.peer);
  CHECK(mail.state == MailState::kEmpty, "rank {} of group {} is in two sends at once", rank, name_);
  mail.call = call;
  mail.state = MailState::kPosted;
  changed_.notify_all();
  Status status = wait(lock, deadline, [&] { return mail.state == MailState::kCopied; });
  // The receiver reads this rank's memory: it finishes, whatever else happened.
  if (mail.state == MailState::kTaken) changed_.wait(lock, [&] { return mail.state == MailState::kCopied; });
  bool copied = mail.state == MailState::kCopied;
  mail.state = MailState::kEmpty;
  if (copied) return {};
  if (!error_.ok()) return error_;
  return fail(deadline_exceeded(format("{} in group {}: rank {} did not receive it",
                                       to_string(call),
                                       name_,
                                       world_ranks_[static_cast<size_t>(call.peer)])));
}

Status ThreadGroup::recv(int rank, const CollectiveCall& call, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!error_.ok()) return error_;
  int sender = world_ranks_[static_cast<size_t>(call.peer)];
  Mailbox& mail = mailbox(call.peer, rank);
  Status status = wait(lock, deadline, [&] { return mail.state == MailState::kPosted; });
  if (!error_.ok()) return error_;
  if (!status.ok())
    return fail(
        deadline_exceeded(format("{} in group {}: nothing from rank {}", to_string(call), name_, sender)));
  if (mail.call.dtype != call.dtype || mail.call.count != call.count)
    return fail(internal_error(format(
        "group {}: {} from rank {} meets a {}", name_, to_string(call), sender, to_string(mail.call))));
  mail.state = MailState::kTaken;
  const std::byte* from = mail.call.in;
  lock.unlock();
  std::memcpy(call.out, from, call.bytes);
  lock.lock();
  mail.state = MailState::kCopied;
  changed_.notify_all();
  return {};
}

Status ThreadGroup::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void ThreadGroup::abort(Status cause) {
  CHECK(!cause.ok(), "an ok status ends nothing");
  std::lock_guard lock(mutex_);
  (void)fail(std::move(cause));
}

}  // namespace llm_dist::comm
