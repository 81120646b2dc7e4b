// A tensor group that is one rank of several, for tests of the layers that stand between its sums.
#pragma once

#include <array>
#include <vector>

#include "comm/norm_reducer.h"
#include "kernels/ops.h"
#include "parallel/context.h"
#include "tests/comm/silent_communicator.h"

namespace llm_dist::parallel {

inline constexpr int64_t kRows = 4;
inline constexpr int64_t kHidden = 8;
inline constexpr int64_t kInner = 6;

inline void must(const Status& status) { CHECK(status.ok(), "{}", status.to_string()); }

// Rank 0 of a group whose other ranks have the same numbers.
class Group : public comm::SilentCommunicator {
 public:
  explicit Group(int size) : SilentCommunicator({.backend = "fake", .name = "tp", .size = size}) {}

  void all_reduce(const Tensor& data, comm::ReduceOp, device::Stream& stream) override {
    ++all_reduces;
    add_up(data, data, stream);
  }
  void reduce_scatter(const Tensor& in, const Tensor& out, comm::ReduceOp, device::Stream& stream) override {
    ++reduce_scatters;
    add_up(in, out, stream);
  }

  void add_up(const Tensor& in, const Tensor& out, device::Stream& stream) const {
    must(stream.synchronize(Deadline::after_seconds(10)));
    for (int64_t i = 0; i < out.numel(); ++i)
      out.as<float>()[i] = in.as<float>()[i] * static_cast<float>(info().size);
  }

  int all_reduces = 0;
  int reduce_scatters = 0;
};

// Makes the calls that it stands for.
class Reducer : public comm::NormReducer {
 public:
  Reducer(const Group& group, const kernels::Ops& ops, int64_t most_rows)
      : group_(group), ops_(ops), most_rows_(most_rows) {}

  bool takes(int64_t rows, int64_t hidden, DType dtype) const override {
    return rows <= most_rows_ && hidden == kHidden && dtype == DType::kF32;
  }
  void all_reduce_add_rms_norm(const comm::SumAndNorm& call, device::Stream& stream) override {
    ++calls;
    sent_calls += call.sent ? 1 : 0;
    group_.add_up(call.x, call.x, stream);
    ops_.table().add_rms_norm(ops_.state(),
                              stream,
                              {.x = call.x,
                               .residual = call.residual,
                               .weight = call.weight,
                               .epsilon = call.epsilon,
                               .out = call.out});
  }

  device::PeerTerms terms(int64_t, int64_t, DType) const override {
    device::PeerTerms terms;
    if (takes_terms) terms.size = group_.info().size;
    return terms;
  }
  bool takes_shares(int64_t rows, int64_t hidden, DType dtype) const override {
    return takes(rows, hidden, dtype) && rows % group_.info().size == 0;
  }
  // Apart from each other once they are handed.
  Tensor shared_term(int rank, int64_t rows, int64_t hidden, DType dtype) const override {
    const int64_t share = rows / group_.info().size;
    const int64_t at = hands_terms_ ? 2 * rank * share : rank * share;
    return Tensor::contiguous(term_.data() + at * hidden, dtype, {share, hidden});
  }
  void hand_terms() override { hands_terms_ = true; }
  device::HandedRows handed_rows(int64_t, int64_t, DType, bool) const override {
    return {.rank = group_.info().rank, .size = group_.info().size};
  }
  Tensor shared_out(int64_t rows, int64_t hidden, DType dtype) const override {
    return Tensor::contiguous(out_.data(), dtype, {rows, hidden});
  }
  // Of the rows that are the other ranks' nothing comes.
  void add_rms_norm_of_shares(const comm::SharesAndNorm& call, device::Stream& stream) override {
    CHECK(call.out.data == out_.data());
    const int64_t share = call.out.dim(0) / group_.info().size;
    CHECK_EQ(call.residual.dim(0), share);
    kept_calls += call.kept ? 1 : 0;
    all_reduce_add_rms_norm({.x = own_term(call.residual),
                             .residual = call.residual,
                             .weight = call.weight,
                             .epsilon = call.epsilon,
                             .out = call.out.narrow(0, 0, share)},
                            stream);
  }
  void add_shares(const Tensor& residual, device::Stream& stream) override {
    const Tensor term = own_term(residual);
    group_.add_up(term, term, stream);
    ops_.table().add(ops_.state(), stream, {.a = residual, .b = term});
  }
  // This rank's, as it was left.
  std::vector<float> term_for(int rank) const {
    const Tensor term = shared_term(rank, kRows, kHidden, DType::kF32);
    return {term.as<float>(), term.as<float>() + term.numel()};
  }

  int calls = 0;
  int sent_calls = 0;
  int kept_calls = 0;
  bool takes_terms = false;

 private:
  Tensor own_term(const Tensor& share) const {
    return Tensor::contiguous(term_.data(), share.dtype, {share.dim(0), share.dim(1)});
  }

  const Group& group_;
  const kernels::Ops& ops_;
  int64_t most_rows_;
  bool hands_terms_ = false;
  mutable std::array<float, 2 * kRows * kHidden> term_{};
  mutable std::array<float, kRows * kHidden> out_{};
};

}  // namespace llm_dist::parallel
