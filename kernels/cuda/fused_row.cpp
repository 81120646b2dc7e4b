// Which ops are put off, and which of them go out together.
#include "kernels/cuda/fused_row.h"

#include <algorithm>
#include <iterator>

#include "kernels/cuda/fused_row_kernel.h"
#include "kernels/cuda/launch.h"

namespace llm_dist::kernels {
namespace {

bool are_aligned(std::initializer_list<const void*> all) {
  return std::all_of(
      all.begin(), all.end(), [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; });
}

bool overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto* first = static_cast<const std::byte*>(a);
  const auto* second = static_cast<const std::byte*>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

}  // namespace

FusedRow::FusedRow(std::byte* memory, const HopperDevice& device, bool wanted)
    : readers_(reinterpret_cast<uint32_t*>(memory)),
      processors_(device.processors),
      wanted_(wanted && device.supported && fused_row::fits_processors() &&
              load_norms_of_terms() == cudaSuccess) {}

FusedRow::~FusedRow() {
  if (stream_ != nullptr) stream_->take_back();
}

bool FusedRow::takes(const MatmulShape& shape) const {
  const int load = shape.f8_weight ? 16 : kVecWidth;  // elements of 16 bytes of W
  const bool short_floats = shape.in == DType::kBF16 || shape.in == DType::kF16;
  return wanted_ && shape.m == 1 && short_floats && shape.alignment >= 16 && shape.k % load == 0 &&
         shape.n <= (1 << 30) && fused_row::has_room(shape.k, false);
}

bool FusedRow::begin(device::CudaStream& stream) {
  if (stream_ != nullptr && stream_ != &stream) (void)stream_->enter();
  if (!stream.enter()) return false;
  stream.put_off(this);
  stream_ = &stream;
  return true;
}

bool FusedRow::put_off(const RowNorm& norm, device::CudaStream& stream) {
  const bool short_floats = norm.dtype == DType::kBF16 || norm.dtype == DType::kF16;
  if (!wanted_ || !short_floats || norm.width % kVecWidth != 0 || !fused_row::has_room(norm.width, true) ||
      !are_aligned({norm.x, norm.residual, norm.weight, norm.out}))
    return false;
  if (begin(stream)) ops_.norm = norm;
  return true;
}

// Its blocks write y while others may still read what the norm is of. What sends y waits for a norm in front:
// who takes it relies on that (device/terms_of_row.cuh).
bool FusedRow::joins(const MatmulShape& shape, const MatmulOperands& operands) const {
  const RowNorm& norm = ops_.norm;
  if (!ops_.has_norm() || ops_.has_product() || operands.terms.size > 0 || operands.x != norm.out ||
      shape.k != norm.width || shape.in != norm.dtype)
    return false;
  const int64_t y_bytes = shape.columns() * dtype_bytes(shape.out);
  const int64_t row_bytes = norm.width * dtype_bytes(norm.dtype);
  const void* rows[] = {norm.x, norm.residual, norm.out};
  return std::none_of(std::begin(rows), std::end(rows), [&](const void* row) {
    return overlap(operands.y, y_bytes, row, row_bytes);
  });
}

bool FusedRow::put_off(const MatmulShape& shape, const MatmulOperands& operands, device::CudaStream& stream) {
  if (!takes(shape)) return false;
  if ((stream_ != &stream || !joins(shape, operands)) && !begin(stream)) return true;
  ops_.shape = shape;
  ops_.operands = operands;
  return true;
}

bool FusedRow::joins(const Rotation& rotation) const {
  const MatmulShape& shape = ops_.shape;
  const bool takes_cache = rotation.cache_dtype == rotation.dtype || rotation.cache_dtype == DType::kF8E4M3;
  return takes_cache && ops_.has_product() && !ops_.has_rotation() && !shape.gated &&
         shape.in == rotation.dtype && shape.out == rotation.dtype && ops_.operands.y == rotation.qkv &&
         shape.n == rotation.columns();
}

bool FusedRow::put_off(const Rotation& rotation, device::CudaStream& stream) {
  if (stream_ != &stream || !joins(rotation)) return false;
  ops_.rotation = rotation;
  return true;
}

void FusedRow::issue(device::CudaStream& stream) {
  if (ops_.has_product()) {
    stream.check(fused_row::launch(ops_, readers_, processors_, stream.handle()), "linear of a row");
  } else {
    stream.check(launch_row_norm(ops_.norm, stream.handle()), "add_rms_norm");
  }
  drop();
}

void FusedRow::drop() {
  ops_ = {};
  stream_ = nullptr;
}

}  // namespace llm_dist::kernels
