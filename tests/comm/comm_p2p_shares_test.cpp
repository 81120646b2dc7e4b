// Sums, additions to shares of the residual stream and norms in one kernel, beside the calls apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "comm/norm_reducer.h"
#include "tests/comm/p2p_fixture.h"

namespace llm_dist::comm {
namespace {

constexpr int64_t kMostRowsOfRank = 513;
constexpr int64_t kMostHidden = 16384;
constexpr int64_t kMostBytes = kMaxPeerRanks * kMostRowsOfRank * 8192 * 2;

// All ways of all-reduces, whose sums have the same bits.
constexpr PeerLimits kAllWays{.packets_bytes = 64 << 10,
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
// of them, the first of which, gated or not, reads the rows, and hands them where the norm has kept them.
enum class Between : uint8_t { kStandIns, kProduct, kTwoProducts, kGatedAndProduct };

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
    state_ =
        cuda_module()
            .value()
            ->ops->make_state(backend_, {.max_tokens = most_rows, .linear = kernels::LinearKernels::kOwn})
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
    if (kept) {
      fall_behind(copies);
      ASSERT_TRUE(cuda_module().value()->ops->hands_rows(*state_, square(shape), false, kType, size()));
      handed = reducer_.handed_rows(rows(shape), hidden(shape), kType);
      ++num_kept_;
    }
    read(shape, reducer_.shared_out(rows(shape), hidden(shape), kType), rows_of(y_, shape), handed);
  }
  // The same without the product that reads what is normed.
  void norm_shares(size_t shape, bool kept) {
    hand_terms(shape);
    reducer_.add_rms_norm_of_shares({.residual = share_in_rows(shape),
                                     .weight = flat(weight_, 0, hidden(shape)),
                                     .epsilon = 1e-5f,
                                     .out = reducer_.shared_out(rows(shape), hidden(shape), kType),
                                     .kept = kept},
                                    *group_.stream);
  }
  int num_kept() const { return num_kept_; }
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
    read(shape, x, y, {});
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
  bool has_reader() const {
    return between_ == Between::kTwoProducts || between_ == Between::kGatedAndProduct;
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
  void read(size_t shape, const Tensor& x, const Tensor& y, const device::HandedRows& handed) {
    const kernels::OpTable& ops = *cuda_module().value()->ops;
    if (between_ == Between::kTwoProducts) {
      const kernels::LinearParams product{.x = x, .weight = square(shape), .bias = {}, .out = y};
      if (handed.size > 0) return ops.linear_of_handed(*state_, *group_.stream, product, handed);
      return ops.linear(*state_, *group_.stream, product);
    }
    const kernels::LinearSiluAndMulParams product{
        .x = x,
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
  device::Buffer download_[2];
};

// Of lanes, warps, blocks and rounds of all of them: some, all, and more than all.
std::vector<ShareShape> all_shapes() {
  std::vector<ShareShape> shapes;
  for (int64_t hidden : {64, 576, 4096, 8192})
    for (int64_t rows_of_rank : {int64_t{1}, int64_t{3}, int64_t{64}, kMostRowsOfRank})
      shapes.push_back({rows_of_rank, hidden});
  for (int64_t hidden : {8, 4104, 8184, 8200, 12288, 16384}) shapes.push_back({3, hidden});
  shapes.push_back({1100, 512});  // a warp has two rows
  shapes.push_back({1100, 8});
  return shapes;
}

std::vector<ShareShape> some_shapes() {
  return {{1, 4096}, {3, 576}, {16, 8192}, {130, 64}, {257, 2048}, {2, 16384}, {40, 8}, {128, 4096}};
}

// The same on every rank.
std::vector<size_t> calls_of(size_t num_shapes, int count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<size_t> calls;
  for (int i = 0; i < count; ++i) calls.push_back(generator() % num_shapes);
  return calls;
}

class P2pShares : public testing::TestWithParam<int> {
 protected:
  void run(const RankBody& body) const {
    if (ranks_share_gpu() && GetParam() > 2)
      GTEST_SKIP() << "kernels of two ranks that wait leave a third one's no room on a GPU";
    run_with(GetParam(), kAllWays, body);
  }
};

template <typename T, typename Body>
void with_shapes(World& world, Site& site, std::vector<ShareShape> shapes, Body&& body) {
  with_twin<SharesTwin, T>(world, site, std::forward<Body>(body), std::move(shapes));
}

TEST_P(P2pShares, HaveTheBitsOfTheCallsApart) {
  run([](World& world, Site& site) {
    auto check = [&](auto type) {
      using T = decltype(type);
      with_shapes<T>(world, site, all_shapes(), [](SharesTwin<T>& twin, GroupUnderTest&) {
        twin.restart();
        for (size_t shape = 0; shape < twin.num_shapes(); ++shape) {
          SCOPED_TRACE(std::to_string(twin.rows(shape)) + " rows of " + std::to_string(twin.hidden(shape)));
          ASSERT_TRUE(twin.reducer().takes_shares(twin.rows(shape), twin.hidden(shape), DTypeOf<T>::kValue));
          for (int i = 0; i < 2; ++i) {
            twin.shared(shape);
            twin.apart(shape);
          }
          twin.shared_sum(shape);
          twin.apart_sum(shape);
          twin.expect_alike();
        }
      });
    };
    check(BFloat16{});
    check(Float16{});
  });
}

// Many calls that no host waits for, alone and between the others of the group.
TEST_P(P2pShares, CallsOfAllShapesBackToBack) {
  run([](World& world, Site& site) {
    with_shapes<BFloat16>(world, site, some_shapes(), [](SharesTwin<BFloat16>& twin, GroupUnderTest&) {
      for (unsigned seed = 1; seed <= 6; ++seed) {
        const std::vector<size_t> calls = calls_of(twin.num_shapes(), 100, seed);
        twin.restart();
        for (size_t shape : calls) {
          if (seed % 3 == 1) twin.apart(shape);
          twin.shared(shape);
          if (seed % 3 == 2) twin.apart(shape);
        }
        if (seed % 3 == 0)
          for (size_t shape : calls) twin.apart(shape);
        twin.expect_alike();
      }
    });
  });
}

// By one kernel where there are many rows, by one a share where there are few. Of the largest
// shape blocks have more than one tile, and their stores cross beside products.
TEST_P(P2pShares, TakeWhatProductsStoreAtTheRanks) {
  if (ranks_share_gpu()) GTEST_SKIP() << "products take the room in which the other rank's calls wait";
  run([](World& world, Site& site) {
    auto check = [&](auto type) {
      using T = decltype(type);
      constexpr int64_t kWidth = 2048;
      std::vector<ShareShape> shapes;
      for (int64_t rows_of_rank : {512, 3, 513, 130, 1100}) shapes.push_back({rows_of_rank, kWidth});
      auto body = [](SharesTwin<T>& twin, GroupUnderTest& group) {
        for (unsigned seed = 1; seed <= 4; ++seed) {
          const std::vector<size_t> calls = calls_of(twin.num_shapes(), 60, seed + 40);
          std::mt19937 generator(seed);
          twin.restart();
          for (size_t shape : calls) {
            if (static_cast<int>(generator() % static_cast<unsigned>(2 * group.size())) == group.rank())
              twin.fall_behind(generator() % 20);
            twin.shared(shape);
          }
          for (size_t shape : calls) twin.apart(shape);
          twin.expect_alike();
        }
      };
      with_twin<SharesTwin, T>(world, site, body, shapes, Between::kProduct);
    };
    check(BFloat16{});
    check(Float16{});
  });
}

// Between calls that hand all rows out themselves, of the same shapes and of others; now one rank comes late
// to the norm, now one to the product behind it. Of many columns a block has several tiles of a rank's rows.
TEST_P(P2pShares, KeepWhatProductsHand) {
  if (ranks_share_gpu()) GTEST_SKIP() << "products that hand rows wait on all processors";
  run([](World& world, Site& site) {
    auto check = [&](auto type, int64_t width, std::vector<int64_t> rows, Between between) {
      using T = decltype(type);
      std::vector<ShareShape> shapes;
      for (int64_t rows_of_rank : rows) shapes.push_back({rows_of_rank, width});
      auto body = [](SharesTwin<T>& twin, GroupUnderTest& group) {
        for (unsigned seed = 1; seed <= 4; ++seed) {
          const std::vector<size_t> calls = calls_of(twin.num_shapes(), 60, seed + 60);
          std::mt19937 late(seed);
          auto is_late = [&] {
            return static_cast<int>(late() % static_cast<unsigned>(2 * group.size())) == group.rank();
          };
          twin.restart();
          for (size_t i = 0; i < calls.size(); ++i) {
            if (is_late()) twin.fall_behind(late() % 20);
            twin.shared(calls[i], (i + seed) % 4 != 0, is_late() ? late() % 20 : 0);
          }
          for (size_t shape : calls) twin.apart(shape);
          twin.expect_alike();
        }
        EXPECT_GT(twin.num_kept(), 60);
      };
      with_twin<SharesTwin, T>(world, site, body, shapes, between);
    };
    check(BFloat16{}, 2048, {512, 3, 1024, 513, 1536}, Between::kTwoProducts);
    check(Float16{}, 2304, {512, 130, 1536}, Between::kTwoProducts);  // tiles of another width
    check(BFloat16{}, 4096, {512, 1024}, Between::kTwoProducts);
    check(BFloat16{}, 2048, {512, 1024, 513}, Between::kGatedAndProduct);
  });
}

TEST_P(P2pShares, GraphsReplayProductsThatHandRows) {
  if (ranks_share_gpu()) GTEST_SKIP() << "products that hand rows wait on all processors";
  run([](World& world, Site& site) {
    auto body = [&](SharesTwin<BFloat16>& twin, GroupUnderTest& group) {
      const std::vector<size_t> calls = calls_of(twin.num_shapes(), 12, 5);
      auto issue = [&] {
        for (size_t i = 0; i < calls.size(); ++i) {
          twin.shared(calls[i], i % 3 != 0);
          twin.apart(calls[i]);
        }
      };
      replay_in_graph(world,
                      site,
                      group,
                      {.issue = issue,
                       .restart = [&] { twin.restart(); },
                       .expect = [&] { twin.expect_alike(); },
                       .rounds = 10,
                       .replays = 5});
    };
    const std::vector<ShareShape> shapes = {{512, 2048}, {40, 2048}, {1024, 2048}};
    with_twin<SharesTwin, BFloat16>(world, site, body, shapes, Between::kTwoProducts);
  });
}

// Of the rank that leaves, the norm has come, and no product.
TEST_P(P2pShares, AnAbortEndsProductsThatWaitForRows) {
  if (ranks_share_gpu()) GTEST_SKIP() << "products that hand rows wait on all processors";
  run([](World& world, Site& site) {
    auto body = [&](SharesTwin<BFloat16>& twin, GroupUnderTest& group) {
      twin.restart();
      auto issue = [&] {
        for (int i = 0; i < 64; ++i) twin.shared(0, true);
      };
      auto issue_more = [&] { twin.shared(0, true); };
      const bool waiting = group.rank() != group.size() - 1;
      expect_abort_to_end(
          world,
          group,
          {.waiting = waiting, .issue = issue, .issue_more = issue_more, .issue_before_leaving = [&] {
             twin.norm_shares(0, true);
           }});
    };
    const std::vector<ShareShape> shapes = {{512, 2048}};
    with_twin<SharesTwin, BFloat16>(world, site, body, shapes, Between::kTwoProducts);
  });
}

// Now one rank comes late to a call, now another; and those that wait have their next calls behind it.
TEST_P(P2pShares, RanksThatComeLate) {
  run([](World& world, Site& site) {
    with_shapes<BFloat16>(world, site, some_shapes(), [](SharesTwin<BFloat16>& twin, GroupUnderTest& group) {
      for (unsigned seed = 1; seed <= 4; ++seed) {
        const std::vector<size_t> calls = calls_of(twin.num_shapes(), 60, seed + 20);
        std::mt19937 generator(seed);
        twin.restart();
        for (size_t shape : calls) {
          const unsigned late = generator() % static_cast<unsigned>(2 * group.size());
          const unsigned copies = 1 + generator() % 40;
          if (static_cast<int>(late) == group.rank()) twin.fall_behind(copies);
          twin.shared(shape);
        }
        for (size_t shape : calls) twin.apart(shape);
        twin.expect_alike();
      }
    });
  });
}

TEST_P(P2pShares, GraphsReplayManyTimes) {
  run([](World& world, Site& site) {
    with_shapes<BFloat16>(world, site, some_shapes(), [&](SharesTwin<BFloat16>& twin, GroupUnderTest& group) {
      const std::vector<size_t> calls = calls_of(twin.num_shapes(), 33, 3);
      std::mt19937 late(static_cast<unsigned>(group.rank()));
      auto issue = [&] {
        for (size_t i = 0; i < calls.size(); ++i) {
          if (late() % 8 == 0) twin.fall_behind(late() % 10);
          twin.shared(calls[i]);
          if (i % 2 == 0) twin.shared(calls[i]);
          twin.apart(calls[i]);
          if (i % 2 == 0) twin.apart(calls[i]);
        }
      };
      replay_in_graph(world,
                      site,
                      group,
                      {.issue = issue,
                       .restart = [&] { twin.restart(); },
                       .expect = [&] { twin.expect_alike(); },
                       .rounds = 20,
                       .replays = 5});
    });
  });
}

TEST_P(P2pShares, AnAbortEndsWaitingKernels) {
  run([](World& world, Site& site) {
    with_shapes<BFloat16>(world, site, some_shapes(), [&](SharesTwin<BFloat16>& twin, GroupUnderTest& group) {
      twin.restart();
      auto issue = [&] {
        for (size_t shape : calls_of(twin.num_shapes(), 64, 9)) twin.shared(shape);
      };
      auto issue_more = [&] { twin.shared(0); };
      const bool waiting = group.rank() != group.size() - 1;
      expect_abort_to_end(world, group, {.waiting = waiting, .issue = issue, .issue_more = issue_more});
    });
  });
}

TEST_P(P2pShares, TakesWhatItsKernelAndItsLimitAreFor) {
  const PeerLimits limits{.packets_bytes = 4096, .shared_bytes = 64 * 1152};
  run_with(GetParam(), limits, [](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    auto& reducer = dynamic_cast<NormReducer&>(*group.comm);
    const int64_t rows = 64 / group.size() * group.size();
    EXPECT_TRUE(reducer.takes_shares(rows, 576, DType::kBF16));
    EXPECT_TRUE(reducer.takes_shares(rows, 576, DType::kF16));
    EXPECT_FALSE(reducer.takes_shares(rows, 576, DType::kF32));
    EXPECT_FALSE(reducer.takes_shares(rows + group.size(), 576, DType::kBF16));  // more bytes than the limit
    EXPECT_FALSE(reducer.takes_shares(rows - 1, 576, DType::kBF16));             // unlike shares
    EXPECT_FALSE(reducer.takes_shares(0, 576, DType::kBF16));
    EXPECT_FALSE(reducer.takes_shares(rows, 572, DType::kBF16));
    EXPECT_TRUE(reducer.takes_shares(group.size(), 8, DType::kBF16));
    EXPECT_FALSE(reducer.takes(rows, 576, DType::kBF16));
    const int64_t share = rows / group.size();
    const Tensor term = reducer.shared_term(group.rank(), rows, 576, DType::kBF16);
    const Tensor out = reducer.shared_out(rows, 576, DType::kBF16);
    ASSERT_TRUE(term && out);
    EXPECT_EQ(term.dim(0), share);
    EXPECT_EQ(out.dim(0), rows);
    EXPECT_EQ(term.dim(1), 576);
    EXPECT_EQ(term.device, site.backend().device());
    EXPECT_GE(std::abs(static_cast<std::byte*>(term.data) - static_cast<std::byte*>(out.data)), term.bytes());
    EXPECT_FALSE(reducer.shared_term(0, rows - 1, 576, DType::kBF16));
    EXPECT_FALSE(reducer.shared_out(rows - 1, 576, DType::kBF16));
  });
  const PeerLimits handing{.packets_bytes = 4096, .shared_bytes = 64 * 1152, .handed_bytes = 32 * 1152};
  run_with(GetParam(), handing, [](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    auto& reducer = dynamic_cast<NormReducer&>(*group.comm);
    auto place = [&](int rank, int64_t rows) {
      return static_cast<std::byte*>(reducer.shared_term(rank, rows, 576, DType::kBF16).data);
    };
    const int64_t few = group.size();
    const int64_t many = (32 + group.size() - 1) / group.size() * group.size();
    const int64_t share_bytes = many / group.size() * 1152;
    const std::byte* at_home = place(0, many);
    for (int64_t rows : {few, many}) {
      for (int rank = 0; rank < group.size(); ++rank)
        EXPECT_EQ(place(rank, rows), at_home + rank * (rows / group.size()) * 1152);
    }
    reducer.hand_terms();
    EXPECT_EQ(place(1, few), place(0, few) + 1152);
    EXPECT_EQ(place(group.rank(), many), at_home + group.rank() * share_bytes);
    EXPECT_NE(place(1, many), place(0, many) + share_bytes);
  });
  run_with(GetParam(), PeerLimits{.packets_bytes = 4096}, [](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    auto& reducer = dynamic_cast<NormReducer&>(*group.comm);
    EXPECT_FALSE(reducer.takes_shares(group.size(), 576, DType::kBF16));
    EXPECT_FALSE(reducer.shared_term(0, group.size(), 576, DType::kBF16));
  });
}

INSTANTIATE_TEST_SUITE_P(Gpus, P2pShares, testing::Values(2, 3, 4, 5, 8), [](const auto& instance) {
  return "With" + std::to_string(instance.param);
});

}  // namespace
}  // namespace llm_dist::comm
