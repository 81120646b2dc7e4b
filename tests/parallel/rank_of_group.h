// Rank 0 of a tensor group whose other ranks have the same numbers, with what its layers stand on: a CPU, an
// arena, weights.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "parallel/residual.h"
#include "src/device/cpu/cpu_backend.h"
#include "tests/parallel/call_names.h"
#include "tests/parallel/reducing_group.h"

namespace llm_dist::parallel {

class RankOfGroup {
 public:
  // most_rows: of the calls that the group's reducer takes, shared or not; −1: the group has none.
  RankOfGroup(Layout layout,
              int64_t most_rows,
              bool hands_terms,
              const kernels::OpTable& table = kernels::cpu_ops())
      : table_(table),
        group_(layout.tp),
        reducer_(group_, ops_, most_rows),
        arena_({.tokens = kRows, .local_tokens = kRows, .samples = 1}),
        context_{.mesh = Mesh(layout, 0),
                 .dtype = DType::kF32,
                 .arena = &arena_,
                 .weights = &weights_,
                 .ops = &ops_,
                 .tensor_group = &group_,
                 .norm_reducer = most_rows < 0 ? nullptr : &reducer_} {
    if (hands_terms) reducer_.hand_terms();
    const bool shares = layout.is_sequence_parallel(kRows);
    view_ = {
        .num_tokens = kRows, .local_tokens = shares ? kRows / layout.tp : kRows, .sequence_parallel = shares};
  }

  const Calls& names() const { return observer_.names; }
  const std::vector<int64_t>& rows() const { return observer_.rows; }
  const Group& group() const { return group_; }
  const Reducer& reducer() const { return reducer_; }

 protected:
  // Memory for the layers that have been made of context_, and numbers for their weights.
  void allocate() {
    must(arena_.allocate(*backend_));
    for (const MatrixSlot& slot : weights_.matrices) {
      const Tensor rows = numbers({slot.rows, slot.cols}, 1);
      *slot.target = {.scheme = WeightScheme::kF32, .n = slot.rows, .k = slot.cols};
      slot.target->parts[0] = Tensor::contiguous(rows.data, DType::kU8, {slot.rows, slot.cols * 4});
    }
    for (const VectorSlot& slot : weights_.vectors) *slot.target = numbers({slot.size}, 2);
  }
  Tensor numbers(std::initializer_list<int64_t> shape, int salt) {
    const int64_t bytes = Tensor::contiguous(nullptr, DType::kF32, shape).bytes();
    buffers_.push_back(backend_->allocate(bytes, device::MemoryKind::kDevice).value());
    Tensor tensor = buffers_.back().view(DType::kF32, shape);
    for (int64_t i = 0; i < tensor.numel(); ++i)
      tensor.as<float>()[i] = 0.5f * static_cast<float>((i * 7 + salt) % 11 - 5);
    return tensor;
  }
  std::vector<float> values(const Tensor& tensor) {
    must(stream_->synchronize(Deadline::after_seconds(10)));
    return {tensor.as<float>(), tensor.as<float>() + tensor.numel()};
  }

  const kernels::OpTable table_;
  std::unique_ptr<device::Backend> backend_ = device::make_cpu_backend({});
  std::unique_ptr<device::Stream> stream_ = backend_->make_stream("test");
  std::unique_ptr<kernels::OpState> state_ =
      kernels::cpu_ops().make_state(*backend_, {.max_tokens = kRows, .max_features = kHidden}).value();
  CallNames observer_;
  kernels::Ops ops_{table_, *state_, *stream_, &observer_};
  std::list<device::Buffer> buffers_;
  Group group_;
  Reducer reducer_;
  Arena arena_;
  WeightMap weights_;
  Context context_;
  StepView view_;
};

}  // namespace llm_dist::parallel
