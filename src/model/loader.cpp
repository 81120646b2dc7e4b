#include "src/model/loader.h"

#include <algorithm>
#include <cstring>

#include "src/model/weight_reader.h"

namespace llm_dist::model {
namespace {

constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

Result<WeightScheme> stored_scheme(const checkpoint::Checkpoint& checkpoint,
                                   const parallel::WeightPiece& piece) {
  const checkpoint::TensorInfo* tensor = checkpoint.find(piece.tensor);
  if (tensor == nullptr) return not_found(format("{} has no tensor {}", checkpoint.path(), piece.tensor));
  int64_t block = scheme_traits(tensor->scheme).block_values;
  if (piece.col_begin % block != 0 || piece.col_count % block != 0) {
    return invalid_argument(
        format("{} is {} in blocks of {} columns; this layout cuts it at columns {} to {}",
               piece.tensor,
               tensor->scheme,
               block,
               piece.col_begin,
               piece.col_begin + piece.col_count));
  }
  return tensor->scheme;
}

// Whether the pieces' codes can be taken as they are: one scale a row, in a layer that is not looked up.
bool keeps_scales(const parallel::MatrixSlot& slot, const checkpoint::Checkpoint& checkpoint) {
  if (!slot.is_linear) return false;
  return std::all_of(slot.pieces.begin(), slot.pieces.end(), [&](const parallel::WeightPiece& piece) {
    const checkpoint::TensorInfo& tensor = *checkpoint.find(piece.tensor);
    return checkpoint::f8_scales_by_row(tensor, *checkpoint.scales_of(tensor));
  });
}

// As stored where the kernels take it and all pieces agree; else dense in the activations' dtype. Linear
// layers: as `held` asks.
Result<WeightScheme> held_scheme(const parallel::MatrixSlot& slot,
                                 const checkpoint::Checkpoint& checkpoint,
                                 const kernels::OpTable& ops,
                                 const HeldWeights& held) {
  WeightScheme dense = scheme_of(held.activation_dtype);
  WeightScheme scheme = dense;
  for (size_t i = 0; i < slot.pieces.size(); ++i) {
    ASSIGN_OR_RETURN(WeightScheme stored, stored_scheme(checkpoint, slot.pieces[i]));
    if (i == 0) scheme = stored;
    if (stored != scheme || !ops.takes_weight(stored, held.activation_dtype)) scheme = dense;
  }
  if (has_row_scales(scheme) && !keeps_scales(slot, checkpoint)) scheme = dense;
  if (!slot.is_linear || !held.linear) return scheme;
  if (!ops.takes_weight(*held.linear, held.activation_dtype))
    return invalid_argument(format("on {} no linear layer has {} weights beside {} activations",
                                   ops.backend,
                                   *held.linear,
                                   held.activation_dtype));
  return *held.linear;
}

Status fill_tables(const parallel::WeightMap& map,
                   const LoadPlan& plan,
                   const device::Buffer& buffer,
                   device::Backend& backend,
                   device::Stream& stream) {
  for (size_t i = 0; i < map.tables.size(); ++i) {
    const parallel::TableSlot& slot = map.tables[i];
    *slot.target = buffer.view(DType::kF32, {slot.rows, slot.cols}, plan.table_offsets[i]);
    ASSIGN_OR_RETURN(device::Buffer values,
                     backend.allocate(slot.target->bytes(), device::MemoryKind::kPinned));
    slot.fill(reinterpret_cast<float*>(values.data()));
    stream.copy(*slot.target, Tensor::contiguous(values.data(), DType::kF32, {slot.rows, slot.cols}));
    RETURN_IF_ERROR(stream.synchronize(Deadline::after_seconds(kLoadDeadlineSeconds)));
  }
  return ok_status();
}

// The scales of every matrix that has some: on the host until all are known.
class ScaleStaging {
 public:
  static Result<ScaleStaging> make(const LoadPlan& plan, device::Backend& backend) {
    ScaleStaging made;
    for (const LoadPlan::Matrix& matrix : plan.matrices) {
      made.offsets_.push_back(made.bytes_);
      made.bytes_ += scale_bytes(matrix.scheme, matrix.slot->rows);
    }
    if (made.bytes_ == 0) return made;
    ASSIGN_OR_RETURN(made.buffer_, backend.allocate(made.bytes_, device::MemoryKind::kPinned));
    std::memset(made.buffer_.data(), 0, static_cast<size_t>(made.bytes_));
    return made;
  }
  // nullptr where the matrix has none.
  float* of_row(const LoadPlan& plan, size_t matrix, int64_t row) const {
    if (!has_row_scales(plan.matrices[matrix].scheme)) return nullptr;
    return reinterpret_cast<float*>(buffer_.data() + offsets_[matrix]) + row;
  }
  Status copy_to_targets(const LoadPlan& plan, device::Stream& stream) const {
    if (bytes_ == 0) return ok_status();
    for (size_t i = 0; i < plan.matrices.size(); ++i) {
      if (!has_row_scales(plan.matrices[i].scheme)) continue;
      const parallel::MatrixSlot& slot = *plan.matrices[i].slot;
      stream.copy(slot.target->parts[1], Tensor::contiguous(of_row(plan, i, 0), DType::kF32, {slot.rows}));
    }
    return stream.synchronize(Deadline::after_seconds(kLoadDeadlineSeconds));
  }

 private:
  device::Buffer buffer_;
  std::vector<int64_t> offsets_;
  int64_t bytes_ = 0;
};

void point_to(const LoadPlan::Matrix& matrix, const device::Buffer& buffer) {
  const parallel::MatrixSlot& slot = *matrix.slot;
  *slot.target = {.scheme = matrix.scheme, .n = slot.rows, .k = slot.cols};
  slot.target->parts[0] =
      buffer.view(DType::kU8, {slot.rows, row_bytes(matrix.scheme, slot.cols)}, matrix.offset);
  if (has_row_scales(matrix.scheme))
    slot.target->parts[1] = buffer.view(DType::kF32, {slot.rows}, matrix.scales_offset);
}

}  // namespace

Result<LoadPlan> plan_load(const parallel::WeightMap& map,
                           const checkpoint::Checkpoint& checkpoint,
                           const kernels::OpTable& ops,
                           const HeldWeights& held) {
  LoadPlan plan;
  auto take = [&plan](int64_t bytes) {
    int64_t offset = plan.bytes;
    plan.bytes += aligned(bytes);
    return offset;
  };
  for (const parallel::MatrixSlot& slot : map.matrices) {
    ASSIGN_OR_RETURN(WeightScheme scheme, held_scheme(slot, checkpoint, ops, held));
    int64_t bytes = slot.rows * row_bytes(scheme, slot.cols);
    LoadPlan::Matrix matrix{.slot = &slot, .scheme = scheme, .offset = take(bytes)};
    if (has_row_scales(scheme)) matrix.scales_offset = take(scale_bytes(scheme, slot.rows));
    plan.matrices.push_back(matrix);
    plan.weight_bytes += bytes + scale_bytes(scheme, slot.rows);
  }
  for (const parallel::VectorSlot& slot : map.vectors) {
    for (const parallel::WeightPiece& piece : slot.pieces) {
      RETURN_IF_ERROR(stored_scheme(checkpoint, piece).status());
    }
    int64_t bytes = slot.size * dtype_bytes(held.activation_dtype);
    plan.vector_offsets.push_back(take(bytes));
    plan.weight_bytes += bytes;
  }
  for (const parallel::TableSlot& slot : map.tables) {
    plan.table_offsets.push_back(take(slot.rows * slot.cols * dtype_bytes(DType::kF32)));
  }
  return plan;
}

Result<LoadedWeights> load_weights(const parallel::WeightMap& map,
                                   const LoadPlan& plan,
                                   const checkpoint::Checkpoint& checkpoint,
                                   DType activation_dtype,
                                   device::Backend& backend,
                                   device::Stream& stream,
                                   const checkpoint::ReadOptions& options) {
  LoadedWeights loaded;
  ASSIGN_OR_RETURN(loaded.buffer, backend.allocate(plan.bytes, device::MemoryKind::kDevice));
  ASSIGN_OR_RETURN(const ScaleStaging scales, ScaleStaging::make(plan, backend));
  WeightReader reader(checkpoint, backend, stream, options);
  for (size_t i = 0; i < plan.matrices.size(); ++i) {
    const LoadPlan::Matrix& matrix = plan.matrices[i];
    point_to(matrix, loaded.buffer);
    int64_t stride = row_bytes(matrix.scheme, matrix.slot->cols);
    for (const parallel::WeightPiece& piece : matrix.slot->pieces) {
      RETURN_IF_ERROR(
          reader.add({.piece = &piece,
                      .to = matrix.scheme,
                      .destination = loaded.buffer.data() + matrix.offset + piece.dest_row * stride,
                      .scales = scales.of_row(plan, i, piece.dest_row)}));
    }
  }
  for (size_t i = 0; i < map.vectors.size(); ++i) {
    const parallel::VectorSlot& slot = map.vectors[i];
    *slot.target = loaded.buffer.view(activation_dtype, {slot.size}, plan.vector_offsets[i]);
    for (const parallel::WeightPiece& piece : slot.pieces) {
      std::byte* to =
          loaded.buffer.data() + plan.vector_offsets[i] + piece.dest_row * dtype_bytes(activation_dtype);
      RETURN_IF_ERROR(reader.add({.piece = &piece, .to = scheme_of(activation_dtype), .destination = to}));
    }
  }
  ASSIGN_OR_RETURN(loaded.stats, reader.run());
  RETURN_IF_ERROR(scales.copy_to_targets(plan, stream));
  RETURN_IF_ERROR(fill_tables(map, plan, loaded.buffer, backend, stream));
  return loaded;
}

}  // namespace llm_dist::model
