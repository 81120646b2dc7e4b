// Which ops join a chain, what its kernel (row_chain.cu) then is told, and which chain of a device's may be.
#include "kernels/cuda/row_chain.h"

#include <algorithm>
#include <array>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_chain_kernel.h"
#include "kernels/cuda/skinny_linear.h"

namespace llm_dist::kernels {
namespace {

using namespace chain;

constexpr int kElementBytes = 2;
constexpr int kMostPieces = 64;  // of a row of W

// Whether other processes' kernels never run beside ours: each would have some of the processors, and wait
// for the rest.
bool is_alone_on(int device) {
  int shared = 0;
  if (cudaDeviceGetAttribute(&shared, cudaDevAttrMpsEnabled, device) == cudaSuccess) return shared == 0;
  (void)cudaGetLastError();  // an older driver
  return false;
}

// Of the one chain that a device has in this process; null: it has one.
std::atomic<bool>* claim_of(int device) {
  static std::array<std::atomic<bool>, 64> claims;
  if (device >= static_cast<int>(claims.size())) return nullptr;
  std::atomic<bool>& claim = claims[static_cast<size_t>(device)];
  return claim.exchange(true) ? nullptr : &claim;
}

// The fewest pieces of a row that fit their places, all alike and in whole loads; 0: none.
int pieces_of_row(int64_t k) {
  constexpr int64_t kMost = kPieceBytes / kElementBytes;
  for (int64_t pieces = ceil_div(k, kMost); pieces <= kMostPieces && pieces * kLoad <= k; ++pieces) {
    if (k % (pieces * kLoad) == 0) return static_cast<int>(pieces);
  }
  return 0;
}

}  // namespace

RowChain::RowChain(std::byte* memory, const HopperDevice& device, bool wanted)
    : memory_(memory), processors_(device.processors) {
  if (wanted && device.supported && is_alone_on(device.index) && fits_processors())
    claim_ = claim_of(device.index);
}

RowChain::~RowChain() {
  if (stream_ != nullptr) stream_->take_back();
  if (claim_ != nullptr) claim_->store(false);
}

// Of shared memory, beside the places: x, the residual stream, and a product's sums by piece.
struct RowChain::Rest {
  int64_t row = 0;  // elements of the longest x
  int64_t width = 0;
  int64_t pieces = 0;

  void add(const MatmulShape& shape, int processors) {
    row = std::max(row, shape.k);
    const int64_t rows = ceil_div(shape.columns(), processors) + kPacketElements;  // of a block, at most
    pieces = std::max(pieces, rows * pieces_of_row(shape.k) * (shape.gated ? 2 : 1));
  }
  void add(const RowNorm& norm) {
    row = std::max(row, norm.width);
    width = norm.width;
  }
  int64_t x_bytes() const { return row * kElementBytes; }
  int64_t bytes() const { return x_bytes() + width * kElementBytes + pieces * int64_t{sizeof(float)}; }
  bool fits() const { return bytes() + kPlacesBytes <= kSharedBytes; }
};

RowChain::Rest RowChain::rest() const {
  Rest rest;
  for (const Step& step : steps_) {
    if (step.is_norm) {
      rest.add(step.norm);
    } else {
      rest.add(step.shape, processors_);
    }
  }
  return rest;
}

bool RowChain::takes(const MatmulShape& shape) const {
  const bool short_floats = shape.in == DType::kBF16 || shape.in == DType::kF16;
  constexpr int64_t kMostColumns = 1 << 23;  // times the number of blocks they are an int
  if (claim_ == nullptr || shape.m != 1 || !short_floats || shape.f8_weight) return false;
  if (shape.alignment < 16 || shape.columns() > kMostColumns || pieces_of_row(shape.k) == 0) return false;
  Rest alone;
  alone.add(shape, processors_);
  return alone.fits();
}

bool RowChain::sends_last() const {
  const Step& last = steps_.back();
  const bool sent = last.shape.columns() <= kMostSent && last.shape.columns() % kLoad == 0;
  return last.is_norm || (sent && last.shape.out == last.shape.in);
}

bool RowChain::joins(const MatmulShape& shape, const MatmulOperands& operands) const {
  if (steps_.empty() || steps_.size() == kMostSteps || !sends_last()) return false;
  const Step& last = steps_.back();
  const bool is_next = last.is_norm ? operands.x == last.norm.out && shape.k == last.norm.width
                                    : operands.x == last.operands.y && shape.k == last.shape.columns();
  for (const Step& step : steps_) {
    if (!step.is_norm) continue;
    // Blocks have other shares of a norm's out than of what they send.
    if (operands.y == step.norm.residual || (!last.is_norm && last.operands.y == step.norm.out)) return false;
  }
  Rest rest = this->rest();
  rest.add(shape, processors_);
  return is_next && steps_.front().shape.in == shape.in && rest.fits();
}

bool RowChain::joins(const RowNorm& norm) const {
  if (steps_.empty() || steps_.size() == kMostSteps || steps_.back().is_norm || !sends_last()) return false;
  const Step& last = steps_.back();
  const bool overwrites = norm.x == last.operands.y && norm.out == norm.x && last.shape.in == norm.dtype &&
                          last.shape.columns() == norm.width;
  bool same_residual = true;
  for (const Step& step : steps_) {
    same_residual =
        same_residual && (step.is_norm ? step.norm.residual == norm.residual && step.norm.width == norm.width
                                       : step.operands.y != norm.residual);
  }
  uintptr_t bits = 0;
  for (const void* data : {static_cast<const void*>(norm.residual), norm.weight, norm.x})
    bits |= reinterpret_cast<uintptr_t>(data);
  Rest rest = this->rest();
  rest.add(norm);
  return overwrites && same_residual && bits % 16 == 0 && rest.fits();
}

bool RowChain::put_off(const MatmulShape& shape, const MatmulOperands& operands, device::CudaStream& stream) {
  if (!takes(shape)) return false;
  if (stream_ != &stream || !joins(shape, operands)) {
    if (stream_ != nullptr) (void)stream_->enter();
    if (!stream.enter()) return true;
    stream.put_off(this);
    stream_ = &stream;
  }
  steps_.push_back({.is_norm = false, .shape = shape, .operands = operands, .norm = {}});
  return true;
}

bool RowChain::put_off(const RowNorm& norm, device::CudaStream& stream) {
  if (stream_ != &stream || !joins(norm)) return false;
  steps_.push_back({.is_norm = true, .shape = {}, .operands = {}, .norm = norm});
  return true;
}

cudaError_t RowChain::launch(cudaStream_t stream) const {
  const Rest rest = this->rest();
  ChainArgs args{.x_bytes = static_cast<int>(rest.x_bytes()),
                 .width = static_cast<int>(rest.width),
                 .memory = reinterpret_cast<ChainMemory*>(memory_)};
  for (size_t i = 0; i < steps_.size(); ++i) {
    const auto& [is_norm, shape, operands, norm] = steps_[i];
    const bool is_last = i + 1 == steps_.size();
    ChainStep& to = args.steps[args.count++];
    if (is_norm) {
      to = {.is_norm = true, .y = norm.out, .weight = norm.weight, .epsilon = norm.epsilon};
      args.residual = norm.residual;
      continue;
    }
    const int pieces = pieces_of_row(shape.k);
    to = {.gated = shape.gated,
          .floats = shape.out == DType::kF32,
          .sends = !is_last,
          .stores = is_last || !steps_[i + 1].is_norm,
          .columns = static_cast<int>(shape.columns()),
          .k = static_cast<int>(shape.k),
          .piece = static_cast<int>(shape.k / pieces),
          .pieces = pieces,
          .w = operands.w,
          .bias = operands.bias,
          .x = operands.x,
          .y = operands.y};
  }
  return launch_row_chain(
      steps_.front().shape.in, args, processors_, static_cast<int>(rest.bytes() + kPlacesBytes), stream);
}

void RowChain::issue(device::CudaStream& stream) {
  if (rest().width > 0) {
    stream.check(launch(stream.handle()), "a chain of ops on a row");
  } else {
    for (const Step& step : steps_)
      stream.check(launch_skinny_linear(step.shape, step.operands, stream.handle()), "linear");
  }
  drop();
}

void RowChain::drop() {
  steps_.clear();
  stream_ = nullptr;
}

}  // namespace llm_dist::kernels
