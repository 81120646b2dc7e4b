// Terms of sums over ranks that products send to the others; and a single row that is such a sum, taken by
// the product behind it from where the others send theirs, beside the same kernels with the sum in their x.
// The other ranks are played by the test: their terms stand in this GPU's memory before a call, and this
// rank's are looked for in what stands for theirs.
#include <atomic>
#include <cmath>
#include <cstring>

#include "tests/kernels/cuda_linear_fixture.h"

namespace llm_dist::kernels {
namespace {

constexpr int64_t kRowBytes = 2 * 8192;
constexpr int64_t kRows = 64;

class CudaRowTerms : public CudaLinearTest {
 protected:
  struct Case {
    int size = 2;
    int rank = 0;
    int64_t hidden = 4096;
    int64_t k = 1024;
    DType dtype = DType::kBF16;
    bool f8 = false;
    bool has_bias = false;
    int64_t rows = 1;
    std::string to_string() const {
      return format(
          "rank {} of {}, {} rows, hidden {}, k {}, {}, f8 {}", rank, size, rows, hidden, k, dtype, f8);
    }
  };

  // The memory of all ranks, as comm/p2p/norm_sum.cu has it.
  struct Ranks {
    std::vector<Twin> memory;  // [2][ranks][rows][row], of bytes
    Twin calls;                // u64 [rows]
    std::shared_ptr<device::Buffer> aborted;
    Twin seen;  // AbortWords::seen
    device::PeerTerms terms;
  };
  Twin bytes_twin(int64_t bytes, int value) {
    const Twin words =
        twin_of(std::make_shared<TestTensor>(DType::kI32, std::initializer_list<int64_t>{bytes / 4}));
    std::memset(words.cpu.data, value, static_cast<size_t>(bytes));
    upload(words);
    return words;
  }
  Ranks ranks_of(const Case& of) {
    Ranks ranks{.calls = bytes_twin(kRows * 8, 0)};
    for (int rank = 0; rank < of.size; ++rank) {
      ranks.memory.push_back(bytes_twin(2 * of.size * of.rows * kRowBytes, 0xff));
      ranks.terms.rows[rank] = static_cast<std::byte*>(ranks.memory.back().gpu.data);
    }
    ranks.aborted =
        std::make_shared<device::Buffer>(gpu_backend_->allocate(64, device::MemoryKind::kPinned).value());
    *reinterpret_cast<uint32_t*>(ranks.aborted->data()) = 0;
    ranks.terms.row_bytes = kRowBytes;
    ranks.terms.source_bytes = of.rows * kRowBytes;
    ranks.terms.slot_bytes = of.size * of.rows * kRowBytes;
    ranks.terms.calls = static_cast<uint64_t*>(ranks.calls.gpu.data);
    ranks.seen = bytes_twin(sizeof(uint32_t), 0);
    ranks.terms.aborted = {.told = reinterpret_cast<const uint32_t*>(ranks.aborted->data()),
                           .seen = static_cast<uint32_t*>(ranks.seen.gpu.data)};
    ranks.terms.rank = of.rank;
    ranks.terms.size = of.size;
    return ranks;
  }

  // A row-parallel product and what stands behind it.
  struct Layer {
    Case of;
    Twin x, bias, norm, others;  // others: the ranks' terms, one behind the other, this rank's unused
    Twin w_term, w_behind;
    F8Weight f8_term, f8_behind;
    // Twice: with terms, and with sums.
    Twin term[2], residual[2], out[2];

    Weight weight(bool behind) const {
      auto pick = [](const Twin& twin) { return twin.gpu; };
      if (of.f8) return (behind ? f8_behind : f8_term).weight(pick);
      return dense_weight(behind ? w_behind : w_term, pick);
    }
    LinearParams product() const {
      return {
          .x = x.gpu, .weight = weight(false), .bias = of.has_bias ? bias.gpu : Tensor(), .out = term[0].gpu};
    }
    LinearParams behind(int way) const {
      return {.x = term[way].gpu, .weight = weight(true), .bias = {}, .out = out[way].gpu};
    }
    AddRmsNormParams add_norm(int way) const {
      return {.x = term[way].gpu,
              .residual = residual[way].gpu,
              .weight = norm.gpu,
              .epsilon = 1e-5f,
              .out = term[way].gpu};
    }
  };
  static constexpr int64_t kBehind = 776;  // features of the product behind
  Layer layer_of(const Case& of) {
    const double size = 1 / std::sqrt(static_cast<double>(of.k));
    Layer layer{.of = of,
                .x = random_twin(of.dtype, {1, of.k}),
                .bias = random_twin(of.dtype, {of.hidden}),
                .norm = random_twin(of.dtype, {of.hidden}),
                .others = random_twin(of.dtype, {of.size, of.hidden}),
                .w_term = random_twin(of.dtype, {of.f8 ? 1 : of.hidden, of.k}, size),
                .w_behind = random_twin(of.dtype, {of.f8 ? 1 : kBehind, of.hidden}, 0.02),
                .f8_term = f8_weight(of.f8 ? of.hidden : 1, of.k),
                .f8_behind = f8_weight(of.f8 ? kBehind : 1, of.hidden)};
    for (int way = 0; way < 2; ++way) {
      layer.term[way] = output_twin(of.dtype, {1, of.hidden});
      layer.residual[way] = random_twin(of.dtype, {1, of.hidden}, 3);
      layer.out[way] = output_twin(of.dtype, {1, kBehind});
    }
    std::memcpy(layer.residual[1].cpu.data, layer.residual[0].cpu.data, static_cast<size_t>(2 * of.hidden));
    upload(layer.residual[1]);
    return layer;
  }

  Tensor place(const Ranks& ranks, const Layer& layer, int rank, int source, int call) const {
    std::byte* at = ranks.terms.rows[rank] + call % 2 * ranks.terms.slot_bytes + source * kRowBytes;
    return Tensor::contiguous(at, layer.of.dtype, {layer.of.hidden}, gpu_backend_->device());
  }
  // The others' terms of the call with this number.
  void send_others(const Ranks& ranks, const Layer& layer, int call) {
    for (int source = 0; source < layer.of.size; ++source) {
      if (source == layer.of.rank) continue;
      gpu_stream_->copy(place(ranks, layer, layer.of.rank, source, call),
                        layer.others.gpu.rows(source, 1).reshaped({layer.of.hidden}));
    }
  }
  void with_terms(const Ranks& ranks, const Layer& layer) {
    ASSERT_TRUE(module_->ops->linear_terms(*gpu_state_, *gpu_stream_, {layer.product(), ranks.terms}));
    ASSERT_TRUE(module_->ops->add_rms_norm_of_terms(
        *gpu_state_, *gpu_stream_, {.norm = layer.add_norm(0), .terms = ranks.terms}));
    module_->ops->linear(*gpu_state_, *gpu_stream_, layer.behind(0));
  }
  // This rank's term, by the same kernel.
  std::vector<std::byte> term_alone(const Layer& layer) {
    module_->ops->linear(*gpu_state_, *gpu_stream_, layer.product());
    return download(layer.term[0]);
  }
  // In rank order, rounded once.
  void with_sums(const Layer& layer, std::vector<std::byte> mine) {
    const Tensor own = Tensor::contiguous(mine.data(), layer.of.dtype, {layer.of.hidden});
    for (int64_t i = 0; i < layer.of.hidden; ++i) {
      float sum = 0;
      for (int rank = 0; rank < layer.of.size; ++rank) {
        const double value =
            rank == layer.of.rank ? element(own, i) : element(layer.others.cpu, rank * layer.of.hidden + i);
        sum = rank == 0 ? static_cast<float>(value) : sum + static_cast<float>(value);
      }
      set_element(layer.term[1].cpu, i, sum);
    }
    upload(layer.term[1]);
    module_->ops->add_rms_norm(*gpu_state_, *gpu_stream_, layer.add_norm(1));
    module_->ops->linear(*gpu_state_, *gpu_stream_, layer.behind(1));
  }
  void expect_alike(const Layer& layer) {
    EXPECT_EQ(download(layer.residual[0]), download(layer.residual[1]));
    EXPECT_EQ(download(layer.term[0]), download(layer.term[1]));
    EXPECT_EQ(download(layer.out[0]), download(layer.out[1]));
  }
  uint64_t calls(const Ranks& ranks) {
    uint64_t number = 0;
    std::memcpy(&number, download(ranks.calls).data(), sizeof number);
    return number;
  }
  // The rank's own memory has nothing more, and the others' have the term of the last `calls`.
  void expect_sent(const Ranks& ranks, const Layer& layer, const std::vector<std::byte>& mine, int call) {
    const auto at_rank = static_cast<size_t>(layer.of.rank);
    for (std::byte byte : download(ranks.memory[at_rank])) ASSERT_EQ(byte, std::byte{0xff});
    for (int rank = 0; rank < layer.of.size; ++rank) {
      if (rank == layer.of.rank) continue;
      const std::vector<std::byte> all = download(ranks.memory[static_cast<size_t>(rank)]);
      const auto begin = all.begin() + call % 2 * ranks.terms.slot_bytes + layer.of.rank * kRowBytes;
      EXPECT_TRUE(std::equal(mine.begin(), mine.end(), begin)) << "in the memory of rank " << rank;
      const auto end = begin + static_cast<int64_t>(mine.size());
      EXPECT_TRUE(
          std::all_of(end, begin + kRowBytes, [](std::byte byte) { return byte == std::byte{0xff}; }));
    }
  }
  // In every rank's memory stand the rows of y, or the columns that are its own, and nothing else.
  void expect_rows_sent(const Ranks& ranks, const Case& of, const std::vector<std::byte>& y, int64_t part) {
    const auto* counts = static_cast<const uint64_t*>(ranks.calls.cpu.data);
    for (int rank = 0; rank < of.size; ++rank) {
      std::vector<std::byte> wanted(static_cast<size_t>(2 * ranks.terms.slot_bytes), std::byte{0xff});
      for (int64_t row = 0; row < of.rows; ++row) {
        const auto slot = static_cast<int64_t>((counts[row] + 1) % 2);
        const int64_t begin = part == 0 ? 0 : std::min(rank * part, of.hidden);
        const int64_t end = part == 0 ? of.hidden : std::min(begin + part, of.hidden);
        const int64_t to =
            slot * ranks.terms.slot_bytes + of.rank * ranks.terms.source_bytes + row * kRowBytes;
        std::copy(y.begin() + 2 * (row * of.hidden + begin),
                  y.begin() + 2 * (row * of.hidden + end),
                  wanted.begin() + to + 2 * begin);
      }
      EXPECT_EQ(download(ranks.memory[static_cast<size_t>(rank)]), wanted)
          << "in the memory of rank " << rank;
    }
  }
  void SetUp() override {
    CudaLinearTest::SetUp();
    if (IsSkipped()) return;
    use_state(LinearKernels::kFastest);
    if (!is_hopper()) GTEST_SKIP() << "no such kernel for " << gpu_backend_->description();
  }
};

TEST_F(CudaRowTerms, AreTakenByTheProductBehind) {
  for (const Case& of :
       {Case{},
        Case{.rank = 1, .hidden = 8192, .k = 4096},
        Case{.rank = 1, .f8 = true, .has_bias = true},
        Case{.size = 3, .rank = 1, .hidden = 576, .k = 520, .dtype = DType::kF16, .has_bias = true},
        Case{.size = 4, .rank = 3, .k = 3584},
        Case{.size = 4, .rank = 0, .hidden = 8192, .k = 2048, .f8 = true},
        Case{.size = 8, .rank = 5, .hidden = 8192, .k = 1024},
        Case{.size = 8, .rank = 0, .hidden = 64, .k = 16, .dtype = DType::kF16}}) {
    SCOPED_TRACE(of.to_string());
    const Layer layer = layer_of(of);
    const Ranks ranks = ranks_of(of);
    const std::vector<std::byte> mine = term_alone(layer);
    for (int call = 1; call <= 5; ++call) {
      send_others(ranks, layer, call);
      with_terms(ranks, layer);
      with_sums(layer, mine);
      synchronize();
      expect_alike(layer);
      expect_sent(ranks, layer, mine, call);
      EXPECT_EQ(calls(ranks), static_cast<uint64_t>(call));
      if (HasFailure()) return;
    }
  }
}

// Sums that follow each other at once, the second asking for its place while the first is under way.
TEST_F(CudaRowTerms, InAGraph) {
  const Layer layer = layer_of({.size = 4, .rank = 2, .k = 512});
  const Ranks ranks = ranks_of(layer.of);
  const std::vector<std::byte> mine = term_alone(layer);
  auto issue = [&] {
    for (int call = 1; call <= 2; ++call) send_others(ranks, layer, call);
    for (int call = 1; call <= 2; ++call) with_terms(ranks, layer);
  };
  issue();
  gpu_backend_->begin_capture(*gpu_stream_);
  issue();
  auto graph = gpu_backend_->end_capture(*gpu_stream_);
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  constexpr int kReplays = 20;
  for (int replay = 0; replay < kReplays; ++replay) (*graph)->launch(*gpu_stream_);
  for (int call = 0; call < 2 * (1 + kReplays); ++call) with_sums(layer, mine);
  synchronize();
  expect_alike(layer);
  expect_sent(ranks, layer, mine, 2);
  EXPECT_EQ(calls(ranks), 2u * (1 + kReplays));
}

// Nothing joins the norm: a kernel of its own takes the terms.
TEST_F(CudaRowTerms, AreTakenByTheNormAlone) {
  for (const Case& of : {Case{}, Case{.size = 5, .rank = 4, .hidden = 8192, .dtype = DType::kF16}}) {
    SCOPED_TRACE(of.to_string());
    const Layer layer = layer_of(of);
    const Ranks ranks = ranks_of(of);
    const std::vector<std::byte> mine = term_alone(layer);
    for (int call = 1; call <= 3; ++call) {
      send_others(ranks, layer, call);
      ASSERT_TRUE(module_->ops->linear_terms(*gpu_state_, *gpu_stream_, {layer.product(), ranks.terms}));
      ASSERT_TRUE(module_->ops->add_rms_norm_of_terms(
          *gpu_state_, *gpu_stream_, {.norm = layer.add_norm(0), .terms = ranks.terms}));
      synchronize();
      module_->ops->linear(*gpu_state_, *gpu_stream_, layer.behind(0));
      with_sums(layer, mine);
      synchronize();
      // The norm by itself adds up squares in another order.
      const double far = 2 * tolerance(of.dtype);
      EXPECT_EQ(download(layer.residual[0]), download(layer.residual[1]));
      const std::vector<std::byte> normed = download(layer.term[1]);
      std::memcpy(layer.term[0].cpu.data, normed.data(), normed.size());
      expect_same(layer.term[0], far);
      expect_sent(ranks, layer, mine, call);
      EXPECT_EQ(calls(ranks), static_cast<uint64_t>(call));
    }
  }
}

// Without the kernels that send and take, nothing is done but the product.
TEST_F(CudaRowTerms, OthersNeitherSendNorTake) {
  const Layer layer = layer_of({});
  const Ranks ranks = ranks_of(layer.of);
  const std::vector<std::byte> mine = term_alone(layer);
  use_state(LinearKernels::kFastest, false);
  EXPECT_FALSE(module_->ops->linear_terms(*gpu_state_, *gpu_stream_, {layer.product(), ranks.terms}));
  const Tensor seen =
      Tensor::contiguous(const_cast<std::byte*>(mine.data()), layer.of.dtype, {layer.of.hidden});
  for (int64_t i = 0; i < layer.of.hidden; ++i) set_element(layer.term[0].cpu, i, element(seen, i));
  expect_same(layer.term[0], 2 * tolerance(layer.of.dtype));
  EXPECT_FALSE(module_->ops->add_rms_norm_of_terms(
      *gpu_state_, *gpu_stream_, {.norm = layer.add_norm(0), .terms = ranks.terms}));
  for (const Twin& memory : ranks.memory)
    for (std::byte byte : download(memory)) ASSERT_EQ(byte, std::byte{0xff});
  EXPECT_EQ(calls(ranks), 0u);
}

TEST_F(CudaRowTerms, AnAbortEndsTheWait) {
  const Layer layer = layer_of({.size = 3});
  const Ranks ranks = ranks_of(layer.of);
  with_terms(ranks, layer);
  const Status waiting = gpu_stream_->synchronize(Deadline::after_seconds(0.2));
  EXPECT_EQ(waiting.code(), StatusCode::kDeadlineExceeded) << waiting.to_string();
  std::atomic_ref told(*reinterpret_cast<uint32_t*>(ranks.aborted->data()));
  told.store(1);
  const Status ended = gpu_stream_->synchronize(Deadline::after_seconds(5));
  ASSERT_TRUE(ended.ok()) << ended.to_string();
  // And the waits behind it, which do not have to look at the host's word: what the first one saw is enough.
  uint32_t seen = 0;
  std::memcpy(&seen, download(ranks.seen).data(), sizeof seen);
  EXPECT_EQ(seen, 1u);
  told.store(0);
  with_terms(ranks, layer);
  const Status behind = gpu_stream_->synchronize(Deadline::after_seconds(5));
  EXPECT_TRUE(behind.ok()) << behind.to_string();
  if (!behind.ok()) told.store(1);  // or nothing would end it
}

// A few rows: each goes where its own count of sums says, all of it to everyone or its parts to their ranks.
TEST_F(CudaRowTerms, OfAFewRowsAreSent) {
  for (const LinearKernels kernels : {LinearKernels::kOwn, LinearKernels::kEven, LinearKernels::kEvenWide}) {
    use_state(kernels);
    for (const Case& of :
         {Case{.k = 2048, .rows = 2},
          Case{.size = 4, .rank = 2, .k = 3584, .dtype = DType::kF16, .has_bias = true, .rows = 8},
          Case{.size = 3, .rank = 2, .hidden = 576, .k = 768, .rows = 13},
          Case{.rank = 1, .hidden = 8192, .k = 512, .f8 = true, .rows = 16},
          Case{.size = 8, .rank = 3, .hidden = 8192, .k = 1024, .rows = 4},
          Case{.size = 8, .rank = 3, .hidden = 8192, .k = 1024, .rows = 32},
          Case{.size = 4, .rank = 0, .k = 1024, .f8 = true, .rows = 32},
          Case{.rank = 1, .k = 4096, .rows = 31}}) {
      SCOPED_TRACE(of.to_string());
      const Twin x = random_twin(of.dtype, {of.rows, of.k});
      const Twin w =
          random_twin(of.dtype, {of.f8 ? 1 : of.hidden, of.k}, 1 / std::sqrt(static_cast<double>(of.k)));
      const F8Weight f8 = f8_weight(of.f8 ? of.hidden : 1, of.k);
      const Twin bias = random_twin(of.dtype, {of.hidden});
      const Twin y = output_twin(of.dtype, {of.rows, of.hidden});
      auto pick = [](const Twin& twin) { return twin.gpu; };
      const LinearParams product{.x = x.gpu,
                                 .weight = of.f8 ? f8.weight(pick) : dense_weight(w, pick),
                                 .bias = of.has_bias ? bias.gpu : Tensor(),
                                 .out = y.gpu};
      Ranks ranks = ranks_of(of);
      // Which kernel it is to be is not known before the first time.
      EXPECT_FALSE(module_->ops->linear_terms(*gpu_state_, *gpu_stream_, {product, ranks.terms}));
      const std::vector<std::byte> expected = download(y);
      expect_streamed(of.rows, of.hidden, of.k);
      for (int64_t part : {int64_t{0}, (of.hidden / of.size + 255) / 256 * 256}) {
        ranks.terms.part_columns = static_cast<int>(part);
        for (const Twin& memory : ranks.memory) upload(memory);
        auto* counts = static_cast<uint64_t*>(ranks.calls.cpu.data);
        for (int64_t row = 0; row < of.rows; ++row) counts[row] = static_cast<uint64_t>(row * row / 3);
        upload(ranks.calls);
        upload(y);
        const std::vector<std::byte> before = download(y);
        const bool many = part == 0 && of.rows * (of.size - 1) > 32;  // copies
        const bool sent = module_->ops->linear_terms(*gpu_state_, *gpu_stream_, {product, ranks.terms});
        ASSERT_EQ(sent, !many);
        EXPECT_EQ(download(y), many ? expected : before);
        if (many) continue;
        expect_rows_sent(ranks, of, expected, part);
        if (HasFailure()) return;
      }
    }
  }
}

// Of more rows the kernel behind sends more at a time.
TEST_F(CudaRowTerms, OfMoreRowsAreNotSent) {
  const Case of{.k = 512, .rows = 33};
  const Twin x = random_twin(of.dtype, {of.rows, of.k});
  const Twin w = random_twin(of.dtype, {of.hidden, of.k}, 0.05);
  const Twin y = output_twin(of.dtype, {of.rows, of.hidden});
  const LinearParams product{.x = x.gpu,
                             .weight = dense_weight(w, [](const Twin& twin) { return twin.gpu; }),
                             .bias = {},
                             .out = y.gpu};
  const Ranks ranks = ranks_of(of);
  module_->ops->linear(*gpu_state_, *gpu_stream_, product);
  const std::vector<std::byte> expected = download(y);
  upload(y);
  EXPECT_FALSE(module_->ops->linear_terms(*gpu_state_, *gpu_stream_, {product, ranks.terms}));
  EXPECT_EQ(download(y), expected);
}

}  // namespace
}  // namespace llm_dist::kernels
