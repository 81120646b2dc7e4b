// MessageTransport over MPI. One lock around every MPI call, with MPI_THREAD_SERIALIZED: the calls are short,
// every MPI offers it, and with three streams on two cores MPI_THREAD_MULTIPLE was no clear gain. Groups are
// told apart by tag, so that making one is no collective MPI call, which would have no deadline.
#include "comm/mpi/mpi_module.h"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>

namespace llm_dist::comm {
namespace {

// 23 bits: what every transport of Open MPI offers (UCX has the fewest).
constexpr int kLargestTag = MessageTransport::kGroups * MessageChannel::kTags - 1;
// How often a cancelled receive is looked at before it is left to MPI.
constexpr int kCancelTests = 100;

Status mpi_status(int code, std::string_view what) {
  if (code == MPI_SUCCESS) return {};
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return unavailable(format("{}: {}", what, std::string_view(text.data(), static_cast<size_t>(length))));
}

class MpiChannel : public MessageChannel {
 public:
  MpiChannel(std::mutex& mpi, MPI_Comm comm, int id, std::span<const int> world_ranks)
      : mpi_(mpi), comm_(comm), first_tag_(id * kTags), world_ranks_(world_ranks.begin(), world_ranks.end()) {
    size_t most = 2 * world_ranks_.size();
    requests_.reserve(most);
    statuses_.reserve(most);
    started_.reserve(most);
  }
  ~MpiChannel() override { cancel(); }

  Status start_send(const void* data, size_t bytes, int peer, int tag) override {
    MPI_Request request = MPI_REQUEST_NULL;
    std::lock_guard lock(mpi_);
    RETURN_IF_ERROR(mpi_status(
        MPI_Isend(
            data, static_cast<int>(bytes), MPI_BYTE, world_rank(peer), first_tag_ + tag, comm_, &request),
        "MPI_Isend"));
    add(request, {peer, -1});
    return {};
  }
  Status start_recv(void* data, size_t bytes, int peer, int tag) override {
    MPI_Request request = MPI_REQUEST_NULL;
    std::lock_guard lock(mpi_);
    RETURN_IF_ERROR(mpi_status(
        MPI_Irecv(
            data, static_cast<int>(bytes), MPI_BYTE, world_rank(peer), first_tag_ + tag, comm_, &request),
        "MPI_Irecv"));
    add(request, {peer, static_cast<int>(bytes)});
    return {};
  }
  Result<bool> progress() override {
    if (requests_.empty()) return true;
    int done = 0;
    {
      std::lock_guard lock(mpi_);
      int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
      if (code != MPI_SUCCESS) return failure(code);
    }
    if (done == 0) return false;
    Status lengths = check_lengths();
    clear();
    if (!lengths.ok()) return lengths;
    return true;
  }
  std::vector<int> waiting_for() override {
    std::lock_guard lock(mpi_);
    std::vector<int> peers;
    for (size_t i = 0; i < requests_.size(); ++i) {
      int done = 0;
      MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
      if (done == 0) peers.push_back(started_[i].peer);
    }
    return peers;
  }
  void cancel() override {
    std::lock_guard lock(mpi_);
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (started_[i].recv_bytes >= 0) cancel_recv(requests_[i]);
      if (requests_[i] != MPI_REQUEST_NULL) MPI_Request_free(&requests_[i]);
    }
    clear();
  }

 private:
  struct Started {
    int peer;
    int recv_bytes;  // −1: a send
  };

  int world_rank(int peer) const { return world_ranks_[static_cast<size_t>(peer)]; }
  void add(MPI_Request request, Started started) {
    requests_.push_back(request);
    started_.push_back(started);
    statuses_.emplace_back();
  }
  void clear() {
    requests_.clear();
    started_.clear();
    statuses_.clear();
  }
  static void cancel_recv(MPI_Request& request) {
    MPI_Cancel(&request);
    int done = 0;
    for (int i = 0; i < kCancelTests && done == 0; ++i) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  }
  Status wrong_length(size_t i, const std::string& sent) const {
    return internal_error(
        format("rank {} sent {} bytes where {} were expected: the ranks are not in the same call",
               world_rank(started_[i].peer),
               sent,
               started_[i].recv_bytes));
  }
  Status failure(int code) {
    for (size_t i = 0; code == MPI_ERR_IN_STATUS && i < statuses_.size(); ++i) {
      int own = statuses_[i].MPI_ERROR;
      if (own == MPI_ERR_TRUNCATE) return wrong_length(i, "more");
      if (own != MPI_SUCCESS && own != MPI_ERR_PENDING)
        return mpi_status(own, format("message with rank {}", world_rank(started_[i].peer)));
    }
    return mpi_status(code, "MPI_Testall");
  }
  Status check_lengths() {
    for (size_t i = 0; i < started_.size(); ++i) {
      if (started_[i].recv_bytes < 0) continue;
      int bytes = 0;
      MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
      if (bytes != started_[i].recv_bytes) return wrong_length(i, format("{}", bytes));
    }
    return {};
  }

  std::mutex& mpi_;
  MPI_Comm comm_;
  int first_tag_;
  std::vector<int> world_ranks_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<Started> started_;
};

class MpiTransport : public MessageTransport {
 public:
  Status start(Deadline deadline);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string address() const override { return {}; }
  std::unique_ptr<MessageChannel> open_channel(int id, std::span<const int> world_ranks) override {
    CHECK(id >= 0 && id < kGroups, "group {}", id);
    return std::make_unique<MpiChannel>(mpi_, comm_, id, world_ranks);
  }
  void post_notice(int world_rank, std::span<const std::byte> notice) override;
  std::string take_notice() override;
  Status finalize() override;

 private:
  struct PostedNotice {
    MPI_Request request;
    std::array<char, kNoticeBytes> bytes;
  };

  Status duplicate_world(MPI_Comm* comm, Deadline deadline);
  Status listen();

  std::mutex mpi_;
  int rank_ = 0;
  int size_ = 1;
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Comm notices_ = MPI_COMM_NULL;
  MPI_Request incoming_ = MPI_REQUEST_NULL;
  std::array<char, kNoticeBytes> incoming_bytes_{};
  std::list<PostedNotice> posted_;  // kept until MPI has sent them
};

// Two copies through shared memory, not one by process_vm_readv: containers forbid that one, virtual machines
// make it slow (measured: 16 KB and more take twice the time), and elsewhere it gains little at the sizes of
// a tensor group.
void prefer_shared_memory() { setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", /*overwrite=*/0); }

Status MpiTransport::start(Deadline deadline) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) return failed_precondition("MPI is initialised already in this process");
  prefer_shared_memory();
  int provided = MPI_THREAD_SINGLE;
  RETURN_IF_ERROR(
      mpi_status(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread"));
  if (provided < MPI_THREAD_SERIALIZED)
    return failed_precondition("this MPI library cannot be called from several threads in turn");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  int* largest_tag = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest_tag, &found);
  if (found == 0 || *largest_tag < kLargestTag)
    return failed_precondition(format("this MPI library's tags end below {}", kLargestTag));
  RETURN_IF_ERROR(duplicate_world(&comm_, deadline));
  RETURN_IF_ERROR(duplicate_world(&notices_, deadline));
  return listen();
}

Status MpiTransport::duplicate_world(MPI_Comm* comm, Deadline deadline) {
  MPI_Request request = MPI_REQUEST_NULL;
  RETURN_IF_ERROR(mpi_status(MPI_Comm_idup(MPI_COMM_WORLD, comm, &request), "MPI_Comm_idup"));
  int done = 0;
  while (true) {
    RETURN_IF_ERROR(mpi_status(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup"));
    if (done != 0) break;
    if (deadline.expired()) return deadline_exceeded("not every rank came to MPI_Comm_idup");
    sched_yield();
  }
  MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
  return {};
}

Status MpiTransport::listen() {
  return mpi_status(MPI_Irecv(incoming_bytes_.data(),
                              static_cast<int>(incoming_bytes_.size()),
                              MPI_BYTE,
                              MPI_ANY_SOURCE,
                              0,
                              notices_,
                              &incoming_),
                    "MPI_Irecv");
}

void MpiTransport::post_notice(int world_rank, std::span<const std::byte> notice) {
  std::lock_guard lock(mpi_);
  PostedNotice& posted = posted_.emplace_back();
  size_t bytes = std::min(notice.size(), posted.bytes.size());
  std::memcpy(posted.bytes.data(), notice.data(), bytes);
  int code = MPI_Isend(
      posted.bytes.data(), static_cast<int>(bytes), MPI_BYTE, world_rank, 0, notices_, &posted.request);
  if (code != MPI_SUCCESS) posted_.pop_back();
}

std::string MpiTransport::take_notice() {
  std::lock_guard lock(mpi_);
  MPI_Status status;
  int done = 0;
  if (incoming_ == MPI_REQUEST_NULL || MPI_Test(&incoming_, &done, &status) != MPI_SUCCESS || done == 0)
    return {};
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  std::string notice(incoming_bytes_.data(), static_cast<size_t>(bytes));
  if (!listen().ok()) incoming_ = MPI_REQUEST_NULL;
  return notice;
}

Status MpiTransport::finalize() {
  std::lock_guard lock(mpi_);
  if (incoming_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&incoming_);
    MPI_Wait(&incoming_, MPI_STATUS_IGNORE);
  }
  for (PostedNotice& posted : posted_) {
    int done = 0;
    MPI_Test(&posted.request, &done, MPI_STATUS_IGNORE);
    if (done == 0) MPI_Request_free(&posted.request);
  }
  MPI_Comm_free(&comm_);
  MPI_Comm_free(&notices_);
  return mpi_status(MPI_Finalize(), "MPI_Finalize");
}

Result<std::unique_ptr<MessageTransport>> start_mpi(Deadline deadline) {
  auto transport = std::make_unique<MpiTransport>();
  RETURN_IF_ERROR(transport->start(deadline));
  return std::unique_ptr<MessageTransport>(std::move(transport));
}

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  return text.data();
}

constexpr MpiModule kModule{
    .version = kMpiModuleVersion, .library_version = library_version, .start = start_mpi};

}  // namespace
}  // namespace llm_dist::comm

extern "C" __attribute__((visibility("default"))) const llm_dist::comm::MpiModule* llm_dist_mpi_module() {
  return &llm_dist::comm::kModule;
}
