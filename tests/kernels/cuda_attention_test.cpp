// Paged attention on GPUs beside the CPU's: prompts, decodes and both, shares of contexts, caches of codes.
#include "tests/kernels/cuda_fixture.h"

namespace llm_dist::kernels {
namespace {

struct Batch {
  std::vector<int32_t> queries, contexts;
};

// Where a batch's blocks stand in the cache: each sequence has its part of a list of all of them, which is
enum class BlockOrder {
  kShuffled,
  kAscending,  // from the cache's first block to its last
  kRotated,    // the same from the fourth on: behind the cache's last block comes its first
  kDescending,
  kInterleaved,  // every second block, then the others
  kSwapped,      // ascending, but neighbours have changed places here and there in a tile
};

std::vector<double> blocks_in(BlockOrder order, int64_t count, std::mt19937_64& random) {
  std::vector<double> blocks(static_cast<size_t>(count));
  std::iota(blocks.begin(), blocks.end(), 0.0);
  switch (order) {
    case BlockOrder::kShuffled: std::shuffle(blocks.begin(), blocks.end(), random); break;
    case BlockOrder::kAscending: break;
    case BlockOrder::kRotated:
      std::rotate(blocks.begin(), blocks.begin() + std::min<int64_t>(3, count), blocks.end());
      break;
    case BlockOrder::kDescending: std::reverse(blocks.begin(), blocks.end()); break;
    case BlockOrder::kInterleaved:
      std::stable_partition(
          blocks.begin(), blocks.end(), [](double block) { return std::fmod(block, 2) == 0; });
      break;
    case BlockOrder::kSwapped:
      for (size_t i = 6; i < blocks.size(); i += 21) std::swap(blocks[i - 1], blocks[i]);
      break;
  }
  return blocks;
}

// Of random elements, one standard deviation; of scores, a factor.
struct Scales {
  double q = 1, k = 1, v = 1;
  float scores = 1;
};

class CudaAttention : public CudaOpTest {
 protected:
  void SetUp() override {
    CudaOpTest::SetUp();
    if (IsSkipped()) return;
    OpStateOptions options = options_;
    options.max_sequences = 512;
    options.vocab_size = 1;  // nothing is sampled
    gpu_state_ = module_->ops->make_state(*gpu_backend_, options).value();
    options.attention = AttentionKernels::kPortable;
    portable_state_ = module_->ops->make_state(*gpu_backend_, options).value();
  }

  // With the kernels that the device takes, and with those that every device does.
  void compare(DType dtype, Heads heads, const Batch& batch, int64_t block_size) {
    for (int kernels = 0; kernels < 2; ++kernels) {
      compare_state(dtype, dtype, heads, batch, block_size);
      gpu_state_.swap(portable_state_);
    }
  }

  // Returns what the GPU gave.
  std::vector<std::byte> compare_state(DType dtype,
                                       DType kv_dtype,
                                       Heads heads,
                                       const Batch& batch,
                                       int64_t block_size,
                                       const Scales& scales = {}) {
    // Behind a context's end stands what others left there, as far as any tile of keys goes.
    constexpr int64_t kMostTileKeys = 128;
    const auto sequences = static_cast<int64_t>(batch.queries.size());
    std::vector<int32_t> starts = {0};
    std::vector<int64_t> first_blocks = {0};
    int64_t most_blocks = 1;
    for (size_t s = 0; s < batch.queries.size(); ++s) {
      starts.push_back(starts.back() + batch.queries[s]);
      first_blocks.push_back(first_blocks.back() +
                             (batch.contexts[s] + kMostTileKeys + block_size - 1) / block_size);
      most_blocks = std::max(most_blocks, (batch.contexts[s] + block_size - 1) / block_size);
    }
    const int64_t num_blocks = first_blocks.back() + 1;
    std::vector<double> blocks = blocks_in(block_order_, num_blocks, random_);
    const double nobodys = blocks.back();  // what a table has behind those
    std::vector<double> table(static_cast<size_t>(sequences * most_blocks), nobodys);
    const int64_t width = heads.q * heads.dim;
    Twin qkv = random_twin(dtype, {starts.back(), width + 2 * heads.kv * heads.dim}, scales.q);
    Twin q = qkv.cut([&](const Tensor& tensor) { return tensor.narrow(1, 0, width); });
    auto cache = [&](double scale) {
      auto host = std::make_shared<TestTensor>(
          kv_dtype, std::initializer_list<int64_t>{num_blocks, heads.kv, block_size, heads.dim});
      normals_.fill(host->view(), scale);
      poison(host->view(), static_cast<int64_t>(nobodys), 0);
      for (size_t s = 0; s < batch.queries.size(); ++s) {
        const int64_t end = batch.contexts[s];
        for (int64_t i = 0; i < first_blocks[s + 1] - first_blocks[s]; ++i) {
          const double block = blocks[static_cast<size_t>(first_blocks[s] + i)];
          if (i < most_blocks) table[s * static_cast<size_t>(most_blocks) + static_cast<size_t>(i)] = block;
          const int64_t from = std::max<int64_t>(0, end - i * block_size);
          if (from < block_size) poison(host->view(), static_cast<int64_t>(block), from);
        }
      }
      return twin_of(std::move(host));
    };
    Twin k = cache(scales.k);
    Twin v = cache(scales.v);
    Twin query_starts = ints(starts);
    Twin context_lens = ints(batch.contexts);
    Twin tables = twin_of(DType::kI32, {sequences, most_blocks}, table);
    Twin out = output_twin(dtype, {starts.back(), width});
    module_->ops->attention_plan(
        *gpu_state_,
        *gpu_stream_,
        {.num_sequences = sequences,
         .num_tokens = starts.back(),
         .max_query_len = *std::max_element(batch.queries.begin(), batch.queries.end()),
         .max_context_len = most_blocks * block_size,
         .query_starts_host = starts.data(),
         .context_lens_host = batch.contexts.data(),
         .query_starts = query_starts.gpu,
         .context_lens = context_lens.gpu,
         .num_heads = heads.q,
         .num_kv_heads = heads.kv,
         .head_dim = static_cast<int32_t>(heads.dim),
         .block_size = static_cast<int32_t>(block_size),
         .dtype = dtype,
         .kv_dtype = kv_dtype});
    run_both(&OpTable::attention, [&](auto pick) {
      return AttentionParams{.q = pick(q),
                             .k_cache = pick(k),
                             .v_cache = pick(v),
                             .query_starts = pick(query_starts),
                             .context_lens = pick(context_lens),
                             .block_tables = pick(tables),
                             .out = pick(out),
                             .num_heads = heads.q,
                             .num_kv_heads = heads.kv,
                             .scale = scales.scores / std::sqrt(static_cast<float>(heads.dim))};
    });
    SCOPED_TRACE(format("{} over {}, heads {}/{} × {}, blocks of {}, in order {}",
                        dtype,
                        kv_dtype,
                        heads.q,
                        heads.kv,
                        heads.dim,
                        block_size,
                        static_cast<int>(block_order_)));
    expect_same(out, scales.v * (dtype == DType::kF32 ? 1e-4 : 2 * tolerance(dtype)));
    return download(out);
  }

  // Whether the device has other kernels than those that every device takes. Kernels round elsewhere: what is
  // equal bit for bit comes from one.
  bool has_own_kernel(DType dtype, DType kv_dtype, Heads heads, const Batch& batch, int64_t block_size) {
    const auto inputs = random_;
    const std::vector<std::byte> own = compare_state(dtype, kv_dtype, heads, batch, block_size);
    random_ = inputs;
    gpu_state_.swap(portable_state_);
    const std::vector<std::byte> portable = compare_state(dtype, kv_dtype, heads, batch, block_size);
    gpu_state_.swap(portable_state_);
    return own != portable;
  }

  BlockOrder block_order_ = BlockOrder::kShuffled;

 private:
  // NaN in the keys of a block of a cache from `first` on: the CPU's op looks at no such key.
  static void poison(const Tensor& cache, int64_t block, int64_t first) {
    for (int64_t head = 0; head < cache.dim(1); ++head) {
      const int64_t of_head = (block * cache.dim(1) + head) * cache.dim(2);
      for (int64_t i = (of_head + first) * cache.dim(3); i < (of_head + cache.dim(2)) * cache.dim(3); ++i)
        set_element(cache, i, std::nan(""));
    }
  }

  std::unique_ptr<OpState> portable_state_;
};

TEST_F(CudaAttention, MatchesTheCpu) {
  const Batch batches[] = {{{1}, {1}},
                           {{1}, {4097}},
                           {{1, 1, 0, 1}, {5, 700, 9, 33}},
                           {{40}, {40}},
                           {{7, 1, 65, 0}, {300, 129, 65, 0}},
                           {{2, 1, 129, 3, 1}, {2, 1000, 1129, 67, 16}},
                           {std::vector<int32_t>(64, 1), std::vector<int32_t>(64, 100)}};
  for (DType dtype : kActivationTypes) {
    for (Heads heads : {Heads{9, 3, 64}, {8, 2, 128}, {8, 1, 128}, {4, 4, 80}, {12, 1, 64}, {2, 1, 256}}) {
      for (const Batch& batch : batches) compare(dtype, heads, batch, 16);
    }
  }
  compare(DType::kBF16, {32, 8, 128}, {{3, 1}, {50, 17}}, 1);
  compare(DType::kBF16, {32, 8, 128}, {{3, 1}, {50, 17}}, 24);
}

// Prompts on both sides of tiles of rows and of keys, behind contexts of their own, several in a step.
TEST_F(CudaAttention, TilesOfPromptsMatchTheCpu) {
  const Batch batches[] = {{{128}, {128}},
                           {{129, 1, 127}, {129, 500, 255}},
                           {{33, 32, 31}, {1000, 128, 129}},
                           {{300}, {811}},
                           {{16, 400, 5}, {4000, 400, 256}}};
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (Heads heads : {Heads{4, 1, 128}, {2, 2, 64}, {3, 1, 128}, {16, 1, 64}, {7, 1, 128}}) {
      int64_t block_size = 16;
      for (const Batch& batch : batches) {
        compare(dtype, heads, batch, block_size);
        block_size = block_size == 256 ? 16 : 2 * block_size;
      }
    }
  }
}

TEST_F(CudaAttention, DecodesAloneHaveATwinWithoutTensorCores) {
  const Batch batch{{1, 1}, {300, 500}};
  for (DType kv_dtype : {DType::kBF16, DType::kF8E4M3}) {
    for (int64_t dim : {64, 128}) EXPECT_TRUE(has_own_kernel(DType::kBF16, kv_dtype, {8, 2, dim}, batch, 16));
  }
}

TEST_F(CudaAttention, WithoutEarlyStartsAsOnTheCpu) {
  module_->allow_early_starts(false);
  compare_state(DType::kBF16, DType::kBF16, {32, 8, 128}, {{500, 1, 7, 1}, {800, 700, 507, 1900}}, 16);
  module_->allow_early_starts(true);
}

// More pieces of work than there are processors, several for each: of heads that L2 has room for together,
// and in turns of seven, seven and two.
TEST_F(CudaAttention, SeveralPiecesForEachProcessor) {
  for (DType kv_dtype : {DType::kBF16, DType::kF8E4M3}) {
    compare_state(DType::kBF16, kv_dtype, {32, 8, 128}, {{2000, 1, 7, 900}, {2300, 700, 507, 900}}, 16);
    compare_state(DType::kBF16, kv_dtype, {24, 8, 64}, {{1500, 1, 1}, {1500, 40, 999}}, 16);
    compare_state(DType::kBF16, kv_dtype, {16, 16, 128}, {{1500, 1}, {4400, 4400}}, 16);
  }
}

// One copy may bring the blocks of a tile where they follow each other: of some tiles, up to the cache's last
// block, behind contexts that end inside a tile or its last block, and in a cache smaller than a tile. Blocks
// of 48 keys do not fill tiles.
TEST_F(CudaAttention, PromptsMatchTheCpuWhereverTheirBlocksStand) {
  const Batch batches[] = {{{40, 5, 130}, {300, 129, 1024}}, {{100, 64}, {128, 1017}}, {{50}, {50}}};
  for (BlockOrder order : {BlockOrder::kAscending,
                           BlockOrder::kRotated,
                           BlockOrder::kDescending,
                           BlockOrder::kInterleaved,
                           BlockOrder::kSwapped}) {
    block_order_ = order;
    for (int64_t block_size : {16, 32, 48, 64}) {
      for (const Batch& batch : batches) {
        compare_state(DType::kF16, DType::kF16, {8, 2, 64}, batch, block_size);
        compare_state(DType::kBF16, DType::kBF16, {8, 2, 128}, batch, block_size);
      }
    }
  }
}

TEST_F(CudaAttention, CodesOfTheCacheAreWidened) {
  const Batch batches[] = {{{1, 1, 0, 1}, {5, 700, 9, 33}},
                           {{1}, {9000}},
                           {{7, 1, 65, 0}, {300, 129, 65, 0}},
                           {{2, 1, 129, 3, 1}, {2, 1000, 1129, 67, 16}}};
  for (DType dtype : kActivationTypes) {
    for (Heads heads : {Heads{9, 3, 64}, {8, 2, 128}, {12, 1, 64}, {16, 1, 128}, {4, 4, 80}}) {
      for (const Batch& batch : batches) compare_state(dtype, DType::kF8E4M3, heads, batch, 16);
    }
  }
}

// Alone and several in a step, whole and behind contexts of their own, on both sides of tiles and blocks, and
// with decodes and sequences without tokens among them; blocks of every size with each kind of heads.
TEST_F(CudaAttention, PromptsOverCodesMatchTheCpu) {
  const Batch batches[] = {{{1, 15, 16, 17}, {1, 15, 16, 17}},
                           {{127, 128, 129}, {127, 128, 129}},
                           {{1000}, {1000}},
                           {{40}, {4097}},
                           {{300, 16, 33}, {811, 128, 1000}},
                           {{1, 129, 1, 64, 0, 1, 9}, {4097, 1000, 129, 64, 5, 17, 265}}};
  constexpr int64_t kBlockSizes[] = {16, 32, 48, 64, 128};
  size_t turn = 0;
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (Heads heads : {Heads{2, 2, 64}, {8, 2, 64}, {8, 1, 64}, {2, 2, 128}, {8, 2, 128}, {8, 1, 128}}) {
      for (const Batch& batch : batches)
        compare_state(dtype, DType::kF8E4M3, heads, batch, kBlockSizes[turn++ % std::size(kBlockSizes)]);
    }
  }
}

// The least codes, which have no leading one, and large ones.
TEST_F(CudaAttention, PromptsTakeCodesOfAnySize) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t dim : {64, 128}) {
      for (const Scales& scales : {Scales{200, 0.005, 0.005}, {0.02, 50, 100}})
        compare_state(dtype, DType::kF8E4M3, {8, 2, dim}, {{150}, {300}}, 16, scales);
    }
  }
}

// Decodes likewise; queries, too, larger and smaller than f16 has them.
TEST_F(CudaAttention, DecodesTakeCodesAndQueriesOfAnySize) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t dim : {64, 128}) {
      for (const Scales& scales :
           {Scales{200, 0.005, 0.005}, {0.02, 50, 100}, {2e-8, 200, 1, 2.5e5f}, {3e5, 0.002, 1}}) {
        if (dtype == DType::kF16 && (scales.q > 1e4 || scales.q < 1e-4)) continue;
        compare_state(dtype, DType::kF8E4M3, {8, 2, dim}, {{1, 1, 2}, {300, 77, 130}}, 16, scales);
      }
    }
  }
}

TEST_F(CudaAttention, HopperHasAKernelForPrompts) {
  const Batch batch{{200, 1, 70}, {300, 500, 70}};
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (DType kv_dtype : {dtype, DType::kF8E4M3}) {
      for (int64_t dim : {64, 128}) {
        for (int64_t block_size : {16, 128})
          EXPECT_EQ(has_own_kernel(dtype, kv_dtype, {8, 2, dim}, batch, block_size), is_hopper());
      }
    }
  }
}

// From many shares of one sequence to none of many.
TEST_F(CudaAttention, SharesOfContextsAreMerged) {
  auto with_last = [](int count, int32_t context, int32_t longest) {
    Batch batch{std::vector<int32_t>(static_cast<size_t>(count), 1),
                std::vector<int32_t>(static_cast<size_t>(count), context)};
    batch.contexts.back() = longest;
    return batch;
  };
  for (Heads heads : {Heads{8, 2, 128}, {12, 1, 64}}) {
    for (const Batch& batch : {with_last(1, 0, 20'000),
                               with_last(3, 9'000, 30'000),
                               with_last(10, 700, 701),
                               with_last(24, 300, 4'000),
                               with_last(50, 100, 200),
                               with_last(64, 64, 1'000)}) {
      compare(DType::kBF16, heads, batch, 16);
      compare(DType::kBF16, heads, batch, 16);  // what the first left must not matter
    }
  }
}

Batch decodes(size_t count, auto context_of) {
  Batch batch{std::vector<int32_t>(count, 1), {}};
  for (size_t i = 0; i < count; ++i) batch.contexts.push_back(context_of(static_cast<int32_t>(i)));
  return batch;
}

// With 16 kv heads a dozen sequences are many: of equal lengths they are not cut, of others they are; with
// prompts and sequences without tokens among them.
TEST_F(CudaAttention, ManySequencesFillTheDevice) {
  Batch mixed = decodes(40, [](int32_t i) { return 1 + 37 * i % 200; });
  mixed.queries[0] = mixed.queries[17] = mixed.queries[39] = 0;
  mixed.queries[3] = 90;
  mixed.contexts[3] = 180;
  mixed.queries[20] = 2;
  mixed.contexts[20] = 65;
  const Batch batches[] = {decodes(13, [](int32_t) { return 1; }),
                           decodes(16, [](int32_t) { return 200; }),
                           decodes(20, [](int32_t) { return 130; }),
                           decodes(14, [](int32_t i) { return i == 7 ? 700 : 64; }),
                           mixed};
  for (Heads heads : {Heads{32, 16, 64}, {192, 16, 64}}) {
    for (const Batch& batch : batches) compare_state(DType::kBF16, DType::kBF16, heads, batch, 16);
    compare_state(DType::kF16, DType::kF8E4M3, heads, mixed, 16);
  }
}

// Many sequences are taken in the order of their lengths: of one length, of any, one much longer than the
// others, and more than the plan looks at together; with prompts, several queries and no tokens among them.
// Those that fill one round and two rounds of two blocks a processor, too.
TEST_F(CudaAttention, ManySequencesOfAnyLengths) {
  auto varied = [](int32_t i) { return 1 + (i * 7919) % 700; };
  Batch queries = decodes(50, [](int32_t i) { return 3 + 61 * i % 400; });
  queries.queries[7] = 3;
  queries.queries[8] = 0;
  queries.queries[31] = 2;
  queries.queries[49] = 0;
  Batch mixed = decodes(300, [](int32_t i) { return 40 + i * 31 % 200; });
  for (size_t i : {3, 255, 256, 290}) mixed.queries[i] = 40;
  for (size_t i : {0, 257, 299}) mixed.queries[i] = 0;
  const Batch batches[] = {decodes(16, varied),
                           decodes(24, varied),
                           decodes(25, [](int32_t) { return 64; }),
                           decodes(30, varied),
                           decodes(48, [](int32_t) { return 128; }),
                           decodes(60, varied),
                           decodes(40, [](int32_t i) { return i == 13 ? 9'000 : 20; }),
                           decodes(300, [](int32_t i) { return 1 + i % 130; }),
                           queries,
                           mixed};
  for (const Batch& batch : batches) {
    for (int again = 0; again < 2; ++again)  // what the first left must not matter
      compare_state(DType::kBF16, DType::kBF16, {32, 16, 64}, batch, 16);
    compare_state(DType::kF16, DType::kF16, {32, 16, 128}, batch, 48);
    compare_state(DType::kBF16, DType::kF8E4M3, {16, 16, 128}, batch, 128);
  }
  compare_state(DType::kBF16, DType::kBF16, {16, 1, 64}, decodes(420, varied), 32);
}

}  // namespace
}  // namespace llm_dist::kernels
