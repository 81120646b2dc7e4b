// ThreadCommunicator: a rank of a ThreadGroup. Reductions add in rank order; every element is summed by one
// rank, which writes it to all.
#pragma once

#include <memory>
#include <vector>

#include "comm/cpu_communicator.h"
#include "comm/thread/thread_group.h"

namespace llm_dist::comm {

class ThreadCommunicator : public CpuCommunicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, CommInfo info, Duration timeout);

  Status poll() const override { return group_->error(); }
  void abort(Status cause) override { group_->abort(std::move(cause)); }

 protected:
  Status run(const CollectiveCall& call) override;

 private:
  // The collective's own work, while every rank's memory may be read.
  void exchange(const CollectiveCall& call);
  void all_reduce_slice(const CollectiveCall& call);
  void reduce_part(const CollectiveCall& call);
  // Copies part `part` of every rank r's input to part r of the output.
  void gather(const CollectiveCall& call, size_t part);

  std::shared_ptr<ThreadGroup> group_;
  Duration timeout_;
  std::vector<const std::byte*> parts_;  // scratch: one pointer a rank
};

}  // namespace llm_dist::comm
