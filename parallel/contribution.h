// Contribution: what a row-parallel layer, or the embedding, adds to the residual stream, and whether the sum
// over the tensor group that it stands for has been made. Where one kernel makes the sum, the addition and
// the norm (comm/norm_reducer.h), the layer leaves its sum to the norm.
#pragma once

#include "parallel/context.h"

namespace llm_dist::parallel {

class Contribution {
 public:
  Contribution() = default;  // none
  // This rank's terms [num_tokens, hidden] of a sum that is still to be made, where the group's NormReducer
  // wants each rank's rows (shared_term). `own`: those of its own rows [num_tokens / tp, hidden].
  static Contribution scattered(const Tensor& own) { return {own, State::kScattered}; }
  // Local rows [local_tokens, hidden], to be added as they are.
  static Contribution finished(const Tensor& sum) { return {sum, State::kSum}; }
  // This rank's term [num_tokens, hidden] of a sum that is still to be made. `sent`: its product has sent it
  // to the other ranks, for the norm behind.
  static Contribution partial(const Tensor& term, bool sent = false) {
    Contribution made(term, State::kTerm);
    made.sent_ = sent;
    return made;
  }

  explicit operator bool() const { return static_cast<bool>(tensor_); }
  bool is_partial() const { return state_ == State::kTerm; }
  bool is_sent() const { return sent_; }
  bool is_scattered() const { return state_ == State::kScattered; }
  const Tensor& sum() const {
    CHECK(state_ == State::kSum, "a rank's term {} taken for the sum", tensor_.to_string());
    return tensor_;
  }
  const Tensor& term() const {
    CHECK(state_ == State::kTerm, "{} taken for a rank's term of all rows", tensor_.to_string());
    return tensor_;
  }

 private:
  enum class State : uint8_t { kSum, kTerm, kScattered };
  Contribution(const Tensor& tensor, State state) : tensor_(tensor), state_(state) {}

  Tensor tensor_;
  State state_ = State::kSum;
  bool sent_ = false;
};

// Sums rows over the tensor group, in place; returns them.
Tensor all_reduce_rows(const Context& context, const Tensor& rows);

}  // namespace llm_dist::parallel
