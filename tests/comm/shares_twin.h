// A rank's calls of sums, additions to shares of the residual stream and norms in one kernel, and the same
// calls apart.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "comm/norm_reducer.h"
#include "tests/comm/p2p_fixture.h"

namespace llm_dist::comm {

inline constexpr int64_t kMostRowsOfRank = 513;
inline constexpr int64_t kMostHidden = 16384;
inline constexpr int64_t kMostBytes = kMaxPeerRanks * kMostRowsOfRank * 8192 * 2;

// All ways of all-reduces, whose sums have the same bits.
inline constexpr PeerLimits kSharedWays{.packets_bytes = 64 << 10,
                                        .one_shot_bytes = 1 << 20,
                                        .two_shot_bytes = kMostBytes,
                                        .norm_bytes = 2 << 20,
                                        .shared_bytes = kMostBytes,
                                        .handed_bytes = 256 << 10};
struct ShareShape {
  int64_t rows_of_rank = 0;
  int64_t hidden = 0;
};

// What makes terms out of normed rows: kernels that stand for products, products of a square matrix, or two
// of them, the first of which, gated or not, reads the rows, and hands them where the norm has kept them: by
// a matrix in 8 bits, whose products read codes, where they take them.
enum class Between : uint8_t { kStandIns, kProduct, kTwoProducts, kGatedAndProduct, kCodesAndProduct };

// One rank's part of calls of some shapes, once in the kernel of shares and once apart. Each shape has a
// residual stream of its own, since a rank's share of the rows is elsewhere in every shape. The terms of a
// call are made out of what the call before it has left, by kernels that stand for the products between.
template <typename T>
class SharesTwin {
 public:
  // With products all shapes are of one width.
  SharesTwin(Site& site,
             GroupUnderTest& group,
             std::vector<ShareShape> shapes,
             Between between = Between::kStandIns)
      : group_(group),
        reducer_(dynamic_cast<NormReducer&>(*group.comm)),
        backend_(site.backend()),
        shapes_(std::move(shapes)),
        between_(between) {
    reducer_.hand_terms();
    for (size_t i = 0; i < shapes_.size(); ++i) {
      begin_.push_back(all_elements_);
      all_elements_ += elements(i);
      if (elements(i) > elements(largest_)) largest_ = i;
    }
    const int64_t most = elements(largest_);
    int64_t most_rows = 0;
    for (const ShareShape& shape : shapes_) most_rows = std::max(most_rows, shape.rows_of_rank * size());
    // Of products by kernels of ours shares have the bits of the whole.
    state_ = cuda_module()
                 .value()
                 ->ops
                 ->make_state(backend_,
                              {.max_tokens = most_rows,
                               .max_features = hidden(largest_),
                               .linear = kernels::LinearKernels::kOwn,
                               .f8_weights = between_ == Between::kCodesAndProduct})
                 .value();
    for (device::Buffer* buffer : {&start_, &scratch_[0], &scratch_[1], &term_, &x_, &y_, &spare_})
      *buffer = allocate(most, device::MemoryKind::kDevice);
    if (between_ == Between::kGatedAndProduct) gate_up_ = allocate(2 * most, device::MemoryKind::kDevice);
    share_ = allocate(all_elements_ / size(), device::MemoryKind::kDevice);
    residual_ = allocate(all_elements_, device::MemoryKind::kDevice);
    weight_ = allocate(kMostHidden, device::MemoryKind::kDevice);
    for (device::Buffer* buffer : {&residual_host_, &download_[0], &download_[1]})
      *buffer = allocate(all_elements_, device::MemoryKind::kPinned);
    upload(weight_, kMostHidden, 77);
    if (has_products()) {
      const int64_t width = hidden(0);
      matrix_ = allocate(2 * width * width, device::MemoryKind::kDevice);
      // Rows keep their size from product to product.
      const float scale = has_reader() ? 0x1p-5f : 1.0f;
      upload(matrix_, 2 * width * width, static_cast<uint64_t>(group.rank()) + 33, scale);
    }
    if (between_ == Between::kCodesAndProduct) upload_codes(hidden(0), static_cast<uint64_t>(group.rank()));
    upload(start_, most, static_cast<uint64_t>(group.rank()) + 1);
    fill(residual_host_, all_elements_, 99);
  }

  NormReducer& reducer() { return reducer_; }
  size_t num_shapes() const { return shapes_.size(); }
  int64_t rows(size_t shape) const { return shapes_[shape].rows_of_rank * size(); }
  int64_t hidden(size_t shape) const { return shapes_[shape].hidden; }

  // Both streams and all that they left begin alike.
  void restart() {
    const int64_t most = elements(largest_);
    for (size_t i = 0; i < shapes_.size(); ++i)
      copy(share_of(i), flat(residual_host_, begin_of_share(i), elements(i) / size()));
    copy(flat(residual_, 0, all_elements_), flat(residual_host_, 0, all_elements_));
    for (const device::Buffer& scratch : scratch_) copy(flat(scratch, 0, most), flat(start_, 0, most));
    if (has_reader()) copy(flat(y_, 0, most), flat(start_, 0, most));
    copy(flat(x_, 0, most), left_in_out());
  }
  // kept: normed rows are, where the product behind can hand them; `copies`: of what keeps this rank's GPU
  // busy between the two.
  void shared(size_t shape, bool kept = false, int64_t copies = 0) {
    kept = kept && has_reader() && rows(shape) % (size() * kernels::kHandedRows) == 0;
    norm_shares(shape, kept);
    if (!has_reader()) return;
    device::HandedRows handed;
    const Normed normed = normed_of(shape);
    if (kept) {
      fall_behind(copies);
      ASSERT_TRUE(
          cuda_module().value()->ops->hands_rows(*state_, matrix_of_reader(shape), false, kType, size()));
      handed = reducer_.handed_rows(rows(shape), hidden(shape), kType, static_cast<bool>(normed.scales));
      ++num_kept_;
    }
    if (normed.scales) ++num_of_codes_;
    read(shape, normed, rows_of(y_, shape), handed);
  }
  // The same without the product that reads what is normed.
  void norm_shares(size_t shape, bool kept) {
    hand_terms(shape);
    const Normed normed = normed_of(shape);
    reducer_.add_rms_norm_of_shares({.residual = share_in_rows(shape),
                                     .weight = flat(weight_, 0, hidden(shape)),
                                     .epsilon = 1e-5f,
                                     .out = normed.rows,
                                     .out_scales = normed.scales,
                                     .kept = kept},
                                    *group_.stream);
  }
  int num_kept() const { return num_kept_; }
  int num_of_codes() const { return num_of_codes_; }
  // What was normed last stays.
  void shared_sum(size_t shape) {
    hand_terms(shape);
    reducer_.add_shares(share_in_rows(shape), *group_.stream);
  }
  void apart_sum(size_t shape) {
    const Tensor term = rows_of(term_, shape);
    add_rms_norm(shape, rows_of(x_, shape), rows_of(scratch_[1], shape), term);
    group_.comm->all_reduce(term, ReduceOp::kSum, *group_.stream);
    cuda_module().value()->ops->add(
        *state_, *group_.stream, {.a = rows_of(residual_, shape, begin_[shape]), .b = term});
  }
  void apart(size_t shape) {
    const Tensor x = rows_of(x_, shape);
    const Tensor residual = rows_of(residual_, shape, begin_[shape]);
    if (has_products()) {
      const Tensor term = rows_of(term_, shape);
      const int64_t share = shapes_[shape].rows_of_rank;
      multiply(shape, x, [&](int rank) { return term.rows(rank * share, share); });
      copy(x, term);
    } else {
      add_rms_norm(shape, x, rows_of(scratch_[1], shape), x);
    }
    if (reducer_.takes(rows(shape), hidden(shape), kType)) {
      reducer_.all_reduce_add_rms_norm({.x = x,
                                        .residual = residual,
                                        .weight = flat(weight_, 0, hidden(shape)),
                                        .epsilon = 1e-5f,
                                        .out = x},
                                       *group_.stream);
    } else {
      group_.comm->all_reduce(x, ReduceOp::kSum, *group_.stream);
      add_rms_norm(shape, x, residual, x);
    }
    if (!has_reader()) return;
    const Tensor y = rows_of(term_, shape);
    read(shape, {x}, y, {});
    copy(x, y);
  }
  // Keeps this rank's GPU busy.
  void fall_behind(int64_t copies) {
    const int64_t most = elements(largest_);
    for (int64_t i = 0; i < copies; ++i) copy(flat(spare_, 0, most), flat(start_, 0, most));
  }
  // All that was left, what lies behind the rows of the last call included.
  void expect_alike() {
    const int64_t most = elements(largest_);
    copy(flat(download_[0], 0, most), left_in_out());
    copy(flat(download_[1], 0, most), flat(x_, 0, most));
    expect_same_bits("of out", most);
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const int64_t count = elements(i) / size();
      copy(flat(download_[0], begin_[i] / size(), count), share_of(i));
      copy(flat(download_[1], begin_[i] / size(), count), flat(residual_, begin_of_share(i), count));
    }
    expect_same_bits("of the residual streams", all_elements_ / size());
  }

 private:
  // What stands in shared_out(); scales: of codes.
  struct Normed {
    Tensor rows;
    Tensor scales{};
  };

  static constexpr DType kType = DTypeOf<T>::kValue;
  static constexpr int64_t kBytes = sizeof(T);

  int size() const { return group_.size(); }
  int64_t elements(size_t shape) const { return rows(shape) * hidden(shape); }
  int64_t begin_of_share(size_t shape) const {
    return begin_[shape] + elements(shape) / size() * group_.rank();
  }
  device::Buffer allocate(int64_t count, device::MemoryKind kind) {
    return backend_.allocate(count * kBytes, kind).value();
  }
  Tensor flat(const device::Buffer& buffer, int64_t begin, int64_t count) const {
    return buffer.view(kType, {count}, begin * kBytes);
  }
  Tensor rows_of(const device::Buffer& buffer, size_t shape, int64_t begin = 0) const {
    return buffer.view(kType, {rows(shape), hidden(shape)}, begin * kBytes);
  }
  Tensor share_of(size_t shape) const {
    return flat(share_, begin_[shape] / size(), elements(shape) / size());
  }
  bool has_products() const { return between_ != Between::kStandIns; }
  bool has_reader() const { return between_ != Between::kStandIns && between_ != Between::kProduct; }
  Normed normed_of(size_t shape) const {
    const Tensor out = reducer_.shared_out(rows(shape), hidden(shape), kType);
    const bool codes =
        between_ == Between::kCodesAndProduct &&
        cuda_module().value()->ops->takes_codes(*state_, matrix_of_reader(shape), false, kType, rows(shape));
    if (!codes) return {out};
    auto* begin = static_cast<std::byte*>(out.data);
    const Tensor rows_of_codes =
        Tensor::contiguous(begin, DType::kF8E4M3, {rows(shape), hidden(shape)}, out.device);
    return {rows_of_codes,
            Tensor::contiguous(begin + rows_of_codes.bytes(), DType::kF32, {1, rows(shape)}, out.device)};
  }
  Weight matrix_of_reader(size_t shape) const {
    if (between_ != Between::kCodesAndProduct) return square(shape);
    const int64_t width = hidden(shape);
    Weight weight{.scheme = WeightScheme::kF8E4M3, .n = width, .k = width};
    weight.parts[0] = codes_.view(DType::kU8, {width, width});
    weight.parts[1] = code_scales_.view(DType::kF32, {width});
    return weight;
  }
  // What the next call's terms are made of.
  Tensor left_in_out() const {
    if (has_reader()) return flat(y_, 0, elements(largest_));
    return reducer_.shared_out(rows(largest_), hidden(largest_), kType).reshaped({elements(largest_)});
  }
  // Rows of the matrix: as many as columns, or twice as many.
  Weight square(size_t shape, int64_t times = 1) const {
    const int64_t width = hidden(shape);
    Weight weight{.scheme = scheme_of(kType), .n = times * width, .k = width};
    weight.parts[0] = matrix_.view(DType::kU8, {times * width, width * kBytes});
    return weight;
  }
  // The first of two products.
  void read(size_t shape, const Normed& x, const Tensor& y, const device::HandedRows& handed) {
    const kernels::OpTable& ops = *cuda_module().value()->ops;
    if (between_ != Between::kGatedAndProduct) {
      const kernels::LinearParams product{
          .x = x.rows, .weight = matrix_of_reader(shape), .bias = {}, .out = y, .x_scales = x.scales};
      if (handed.size > 0) return ops.linear_of_handed(*state_, *group_.stream, product, handed);
      return ops.linear(*state_, *group_.stream, product);
    }
    const kernels::LinearSiluAndMulParams product{
        .x = x.rows,
        .weight = square(shape, 2),
        .bias = {},
        .gate_up = gate_up_.view(kType, {rows(shape), 2 * hidden(shape)}),
        .out = y};
    if (handed.size > 0) return ops.linear_silu_and_mul_of_handed(*state_, *group_.stream, product, handed);
    ops.linear_silu_and_mul(*state_, *group_.stream, product);
  }
  Tensor share_in_rows(size_t shape) const {
    return share_of(shape).reshaped({shapes_[shape].rows_of_rank, hidden(shape)});
  }
  // Makes this rank's terms where the call behind wants them.
  void hand_terms(size_t shape) {
    const Tensor out = reducer_.shared_out(rows(shape), hidden(shape), kType);
    if (has_products()) {
      multiply(
          shape, has_reader() ? rows_of(y_, shape) : out, [&](int rank) { return place_of(rank, shape); });
      return;
    }
    const int64_t share = shapes_[shape].rows_of_rank;
    const Tensor term = rows_of(term_, shape);
    add_rms_norm(shape, out, rows_of(scratch_[0], shape), term);
    for (int i = 1; i <= size(); ++i) {
      const int rank = (group_.rank() + i) % size();
      copy(place_of(rank, shape), term.rows(rank * share, share));
    }
  }
  Tensor place_of(int rank, size_t shape) const {
    return reducer_.shared_term(rank, rows(shape), hidden(shape), kType);
  }
  template <typename PlaceOf>
  void multiply(size_t shape, const Tensor& x, PlaceOf&& place) {
    kernels::LinearSharesParams params{.x = x,
                                       .weight = square(shape),
                                       .bias = {},
                                       .outs = {},
                                       .num_outs = size(),
                                       .first = (group_.rank() + 1) % size()};
    for (int rank = 0; rank < size(); ++rank) params.outs[static_cast<size_t>(rank)] = place(rank);
    cuda_module().value()->ops->linear_shares(*state_, *group_.stream, params);
  }
  void copy(const Tensor& to, const Tensor& from) { group_.stream->copy(to, from); }
  void fill(const device::Buffer& pinned, int64_t count, uint64_t seed, float scale = 1.0f) {
    T* values = reinterpret_cast<T*>(pinned.data());
    for (int64_t i = 0; i < count; ++i)
      values[i] = from_float<T>(to_float(scattered_value<T>(seed, i)) * scale);
  }
  // Of the matrix in 8 bits; rows keep their size from product to product.
  void upload_codes(int64_t width, uint64_t seed) {
    codes_ = backend_.allocate(width * width, device::MemoryKind::kDevice).value();
    code_scales_ = backend_.allocate(width * int64_t{sizeof(float)}, device::MemoryKind::kDevice).value();
    device::Buffer host = backend_.allocate(width * width, device::MemoryKind::kPinned).value();
    auto* codes = reinterpret_cast<uint8_t*>(host.data());
    for (int64_t i = 0; i < width * width; ++i)
      codes[i] = to_f8e4m3(to_float(scattered_value<T>(seed + 55, i)) * 64).bits;
    copy(codes_.view(DType::kU8, {width * width}), host.view(DType::kU8, {width * width}));
    device::Buffer scales =
        backend_.allocate(width * int64_t{sizeof(float)}, device::MemoryKind::kPinned).value();
    std::fill_n(reinterpret_cast<float*>(scales.data()), width, 0x1p-11f);
    copy(code_scales_.view(DType::kF32, {width}), scales.view(DType::kF32, {width}));
    CHECK(group_.synchronize().ok(), "{}", group_.stream->error().to_string());
  }
  void upload(const device::Buffer& to, int64_t count, uint64_t seed, float scale = 1.0f) {
    device::Buffer host = allocate(count, device::MemoryKind::kPinned);
    fill(host, count, seed, scale);
    copy(flat(to, 0, count), flat(host, 0, count));
    CHECK(group_.synchronize().ok(), "{}", group_.stream->error().to_string());
  }
  void add_rms_norm(size_t shape, const Tensor& x, const Tensor& residual, const Tensor& out) {
    // It may start before the call in front of it has ended. On a GPU of both ranks its blocks would then
    // wait for that call in the room that the other rank's call needs, for which that one waits. Behind a
    // copy it starts when all in front has ended.
    if (ranks_share_gpu()) copy(flat(spare_, 0, 1), flat(start_, 0, 1));
    cuda_module().value()->ops->add_rms_norm(*state_,
                                             *group_.stream,
                                             {.x = x,
                                              .residual = residual,
                                              .weight = flat(weight_, 0, hidden(shape)),
                                              .epsilon = 1e-5f,
                                              .out = out});
  }
  void expect_same_bits(const char* what, int64_t count) {
    ASSERT_TRUE(group_.synchronize().ok()) << group_.stream->error().to_string();
    const std::byte* shared = download_[0].data();
    const std::byte* apart = download_[1].data();
    if (std::memcmp(shared, apart, static_cast<size_t>(count * kBytes)) == 0) return;
    const std::byte* other = std::mismatch(shared, shared + count * kBytes, apart).first;
    ADD_FAILURE() << "element " << (other - shared) / kBytes << " " << what << " on rank " << group_.rank();
  }

  GroupUnderTest& group_;
  NormReducer& reducer_;
  device::Backend& backend_;
  std::vector<ShareShape> shapes_;
  std::vector<int64_t> begin_;  // of each shape's residual stream, in elements
  int64_t all_elements_ = 0;
  size_t largest_ = 0;
  Between between_;
  int num_kept_ = 0;
  int num_of_codes_ = 0;
  std::unique_ptr<kernels::OpState> state_;
  device::Buffer start_;          // this rank's own
  device::Buffer scratch_[2];     // residual streams of what makes the terms; [0] shared, [1] apart
  device::Buffer term_;           // of all rows, on their way to the ranks
  device::Buffer x_;              // apart
  device::Buffer y_;              // of the product that reads what was normed
  device::Buffer gate_up_;        // memory for a gated one's
  device::Buffer spare_;          // nobody reads it
  device::Buffer share_;          // of every shape's residual stream
  device::Buffer residual_;       // apart: every shape's, whole
  device::Buffer residual_host_;  // how they begin
  device::Buffer weight_;
  device::Buffer matrix_;
  device::Buffer codes_;  // of the matrix in 8 bits
  device::Buffer code_scales_;
  device::Buffer download_[2];
};

// The same on every rank.
inline std::vector<size_t> calls_of(size_t num_shapes, int count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<size_t> calls;
  for (int i = 0; i < count; ++i) calls.push_back(generator() % num_shapes);
  return calls;
}

}  // namespace llm_dist::comm
