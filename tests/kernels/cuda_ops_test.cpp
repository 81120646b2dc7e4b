// Every CUDA op beside the CPU's, which has slow twins of its own, over odd shapes, empty and one-token
// batches and long contexts.
#include "tests/kernels/cuda_fixture.h"

namespace llm_dist::kernels {
namespace {

using CudaOps = CudaOpTest;

TEST_F(CudaOps, Norms) {
  for (DType dtype : kActivationTypes) {
    for (int64_t rows : {0, 1, 17}) {
      for (int64_t width : {1, 7, 64, 576, 4096, 8200}) {
        Twin x = random_twin(dtype, {rows, width});
        Twin residual = random_twin(dtype, {rows, width});
        Twin weight = random_twin(dtype, {width});
        Twin out = output_twin(dtype, {rows, width});
        run_both(&OpTable::rms_norm, [&](auto pick) {
          return RmsNormParams{.x = pick(x), .weight = pick(weight), .epsilon = 1e-5f, .out = pick(out)};
        });
        expect_same(out, tolerance(dtype));
        run_both(&OpTable::add_rms_norm, [&](auto pick) {
          return AddRmsNormParams{.x = pick(x),
                                  .residual = pick(residual),
                                  .weight = pick(weight),
                                  .epsilon = 1e-5f,
                                  .out = pick(x)};
        });
        expect_same(residual, tolerance(dtype));
        expect_same(x, tolerance(dtype));
        run_both(&OpTable::add, [&](auto pick) { return AddParams{.a = pick(out), .b = pick(residual)}; });
        expect_same(out, 2 * tolerance(dtype));
      }
    }
  }
}

TEST_F(CudaOps, SiluAndMul) {
  for (DType dtype : kActivationTypes) {
    for (int64_t rows : {0, 1, 9}) {
      for (int64_t width : {1, 13, 1536, 14336}) {
        Twin gate_up = random_twin(dtype, {rows, 2 * width}, 3);
        Twin out = output_twin(dtype, {rows, width});
        run_both(&OpTable::silu_and_mul,
                 [&](auto pick) { return SiluAndMulParams{.gate_up = pick(gate_up), .out = pick(out)}; });
        expect_same(out, tolerance(dtype));
      }
    }
  }
}

TEST_F(CudaOps, EmbeddingAndGatheredRows) {
  for (DType dtype : kActivationTypes) {
    for (int64_t width : {1, 9, 64, 576}) {
      Twin table = random_twin(dtype, {11, width});
      Twin ids = ints({5, 104, 99, 110, 111, 100});
      Twin out = output_twin(dtype, {6, width});
      run_both(&OpTable::embedding, [&](auto pick) {
        Weight weight{.scheme = scheme_of(dtype), .n = 11, .k = width};
        weight.parts[0] = Tensor::contiguous(
            pick(table).data, DType::kU8, {11, width * dtype_bytes(dtype)}, pick(table).device);
        return EmbeddingParams{.ids = pick(ids), .table = weight, .vocab_begin = 100, .out = pick(out)};
      });
      expect_same(out, 0);
      Twin rows = ints({10, -1, 0, 3});
      Twin gathered = output_twin(dtype, {4, width});
      run_both(&OpTable::gather_rows, [&](auto pick) {
        return GatherRowsParams{.x = pick(table), .rows = pick(rows), .out = pick(gathered)};
      });
      expect_same(gathered, 0);
    }
  }
}

TEST_F(CudaOps, TokenHistory) {
  Twin history = output_twin(DType::kI32, {4, 10});
  Twin tokens = ints({70, -1, 71, -1, 72, -1});
  Twin slots = ints({3, -1, 0});
  Twin positions = ints({9, 4, 0});
  run_both(&OpTable::scatter_tokens, [&](auto pick) {
    return ScatterTokensParams{.tokens = pick(tokens),
                               .token_stride = 2,
                               .slots = pick(slots),
                               .positions = pick(positions),
                               .history = pick(history)};
  });
  expect_same(history, 0);
  Twin ids = output_twin(DType::kI32, {3});
  run_both(&OpTable::gather_tokens, [&](auto pick) {
    return GatherTokensParams{
        .history = pick(history), .slots = pick(slots), .positions = pick(positions), .ids = pick(ids)};
  });
  expect_same(ids, 0);
}

constexpr std::pair<DType, DType> kWithCaches[] = {{DType::kF32, DType::kF32},
                                                   {DType::kBF16, DType::kBF16},
                                                   {DType::kF16, DType::kF16},
                                                   {DType::kF32, DType::kF8E4M3},
                                                   {DType::kBF16, DType::kF8E4M3},
                                                   {DType::kF16, DType::kF8E4M3}};

struct Heads {
  int32_t q, kv;
  int64_t dim;
};

TEST_F(CudaOps, RopeAppend) {
  for (auto [dtype, kv_dtype] : kWithCaches) {
    for (Heads heads : {Heads{9, 3, 64}, {32, 8, 128}, {2, 1, 8}}) {
      const int64_t width = (heads.q + 2 * heads.kv) * heads.dim;
      Twin qkv = random_twin(dtype, {5, width});
      Twin positions = ints({0, 1, 99, 7, 0});
      Twin slots = ints({0, 17, 31, -1, 5});
      Twin table = random_twin(DType::kF32, {100, heads.dim});
      Twin k = output_twin(kv_dtype, {3, heads.kv, 16, heads.dim});
      Twin v = output_twin(kv_dtype, {3, heads.kv, 16, heads.dim});
      run_both(&OpTable::rope_append, [&](auto pick) {
        return RopeAppendParams{.qkv = pick(qkv),
                                .positions = pick(positions),
                                .kv_slots = pick(slots),
                                .cos_sin = pick(table),
                                .k_cache = pick(k),
                                .v_cache = pick(v),
                                .num_heads = heads.q,
                                .num_kv_heads = heads.kv};
      });
      expect_same(qkv, tolerance(dtype));
      expect_same(k, tolerance(kv_dtype));
      expect_same(v, 0);
    }
  }
}

// Whatever the value, it goes into the cache as the CPU rounds it.
TEST_F(CudaOps, CodesOfTheCache) {
  const std::vector<double> values = values_about_f8();
  const auto d = static_cast<int64_t>(values.size());
  std::vector<double> all(static_cast<size_t>(2 * d));
  all.insert(all.end(), values.begin(), values.end());
  for (DType dtype : kActivationTypes) {
    Twin qkv = twin_of(dtype, {1, 3 * d}, all);
    Twin table = output_twin(DType::kF32, {1, d});
    Twin zero = ints({0});
    Twin k = output_twin(DType::kF8E4M3, {1, 1, 1, d});
    Twin v = output_twin(DType::kF8E4M3, {1, 1, 1, d});
    run_both(&OpTable::rope_append, [&](auto pick) {
      return RopeAppendParams{.qkv = pick(qkv),
                              .positions = pick(zero),
                              .kv_slots = pick(zero),
                              .cos_sin = pick(table),
                              .k_cache = pick(k),
                              .v_cache = pick(v),
                              .num_heads = 1,
                              .num_kv_heads = 1};
    });
    expect_same(v, 0);
  }
}

struct Batch {
  std::vector<int32_t> queries, contexts;
};

class CudaAttention : public CudaOpTest {
 protected:
  void SetUp() override {
    CudaOpTest::SetUp();
    if (IsSkipped()) return;
    OpStateOptions portable = options_;
    portable.attention = AttentionKernels::kPortable;
    portable_state_ = module_->ops->make_state(*gpu_backend_, portable).value();
  }

  // With the kernels that the device takes, and with those that every device does.
  void compare(DType dtype, Heads heads, const Batch& batch, int64_t block_size) {
    for (int kernels = 0; kernels < 2; ++kernels) {
      compare_state(dtype, dtype, heads, batch, block_size);
      gpu_state_.swap(portable_state_);
    }
  }

  void compare_state(DType dtype, DType kv_dtype, Heads heads, const Batch& batch, int64_t block_size) {
    std::vector<int32_t> starts = {0};
    int64_t most_blocks = 1;
    for (size_t s = 0; s < batch.queries.size(); ++s) {
      starts.push_back(starts.back() + batch.queries[s]);
      most_blocks = std::max(most_blocks, (batch.contexts[s] + block_size - 1) / block_size);
    }
    const auto sequences = static_cast<int64_t>(batch.queries.size());
    const int64_t num_blocks = most_blocks * sequences;
    std::vector<double> blocks(static_cast<size_t>(num_blocks));
    std::iota(blocks.begin(), blocks.end(), 0.0);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    const int64_t width = heads.q * heads.dim;
    Twin qkv = random_twin(dtype, {starts.back(), width + 2 * heads.kv * heads.dim});
    Twin q = qkv.cut([&](const Tensor& tensor) { return tensor.narrow(1, 0, width); });
    Twin k = random_twin(kv_dtype, {num_blocks, heads.kv, block_size, heads.dim});
    Twin v = random_twin(kv_dtype, {num_blocks, heads.kv, block_size, heads.dim});
    // Behind a context's end stands what others left there.
    for (size_t s = 0; s < batch.queries.size(); ++s) {
      const int64_t end = batch.contexts[s];
      if (end % block_size == 0) continue;
      const double block =
          blocks[s * static_cast<size_t>(most_blocks) + static_cast<size_t>(end / block_size)];
      for (const Twin* twin : {&k, &v}) poison(*twin, static_cast<int64_t>(block), end % block_size);
    }
    Twin query_starts = ints(starts);
    Twin context_lens = ints(batch.contexts);
    Twin tables = twin_of(DType::kI32, {sequences, most_blocks}, blocks);
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
                             .scale = 1 / std::sqrt(static_cast<float>(heads.dim))};
    });
    SCOPED_TRACE(format("{} over {}, heads {}/{} × {}, blocks of {}",
                        dtype,
                        kv_dtype,
                        heads.q,
                        heads.kv,
                        heads.dim,
                        block_size));
    expect_same(out, dtype == DType::kF32 ? 1e-4 : 2 * tolerance(dtype));
  }

 private:
  // NaN in the keys of a block from `first` on, on the GPU: the CPU's op looks at no such key.
  void poison(const Twin& cache, int64_t block, int64_t first) {
    const Tensor& gpu = cache.gpu;
    const Tensor keys = gpu.narrow(0, block, 1);
    for (int64_t head = 0; head < gpu.dim(1); ++head) {
      const Tensor of_head = keys.narrow(1, head, 1).narrow(2, first, gpu.dim(2) - first);
      const std::vector<double> values(static_cast<size_t>(of_head.numel()), std::nan(""));
      const TestTensor from(gpu.dtype, {1, 1, of_head.dim(2), of_head.dim(3)}, values);
      gpu_stream_->copy(of_head, from.view());
      synchronize();
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

// From many shares of one sequence to none of many.
TEST_F(CudaAttention, SharesOfContextsAreMerged) {
  auto decodes = [](int count, int32_t context, int32_t longest) {
    Batch batch{std::vector<int32_t>(static_cast<size_t>(count), 1),
                std::vector<int32_t>(static_cast<size_t>(count), context)};
    batch.contexts.back() = longest;
    return batch;
  };
  for (Heads heads : {Heads{8, 2, 128}, {12, 1, 64}}) {
    for (const Batch& batch : {decodes(1, 0, 20'000),
                               decodes(3, 9'000, 30'000),
                               decodes(10, 700, 701),
                               decodes(24, 300, 4'000),
                               decodes(50, 100, 200),
                               decodes(64, 64, 1'000)}) {
      compare(DType::kBF16, heads, batch, 16);
      compare(DType::kBF16, heads, batch, 16);  // what the first left must not matter
    }
  }
}

// With 16 kv heads a dozen sequences are many: of equal lengths they are not cut, of others they are; with
// prompts and sequences without tokens among them.
TEST_F(CudaAttention, ManySequencesFillTheDevice) {
  auto decodes = [](size_t count, auto context_of) {
    Batch batch{std::vector<int32_t>(count, 1), {}};
    for (size_t i = 0; i < count; ++i) batch.contexts.push_back(context_of(static_cast<int32_t>(i)));
    return batch;
  };
  Batch mixed = decodes(40, [](int32_t i) { return 1 + 37 * i % 200; });
  mixed.queries[0] = mixed.queries[17] = mixed.queries[39] = 0;
  mixed.queries[3] = 90;
  mixed.contexts[3] = 180;
  mixed.queries[20] = 2;
  mixed.contexts[20] = 65;
  const Batch batches[] = {decodes(13, [](int32_t) { return 1; }),
                           decodes(16, [](int32_t) { return 200; }),  // two blocks a processor, then three
                           decodes(20, [](int32_t) { return 130; }),
                           decodes(14, [](int32_t i) { return i == 7 ? 700 : 64; }),
                           mixed};
  for (Heads heads : {Heads{32, 16, 64}, {192, 16, 64}}) {
    for (const Batch& batch : batches) compare_state(DType::kBF16, DType::kBF16, heads, batch, 16);
    compare_state(DType::kF16, DType::kF8E4M3, heads, mixed, 16);
  }
}

class CudaSampling : public CudaOpTest {
 protected:
  Twin rows_twin(const std::vector<SampleRow>& rows) {
    const auto bytes = static_cast<int64_t>(rows.size() * sizeof(SampleRow));
    Twin twin = output_twin(DType::kF32, {bytes / 4});
    std::memcpy(twin.cpu.data, rows.data(), static_cast<size_t>(bytes));
    upload(twin);
    return twin.cut([&](const Tensor& tensor) {
      return Tensor::contiguous(tensor.data,
                                DType::kU8,
                                {static_cast<int64_t>(rows.size()), static_cast<int64_t>(sizeof(SampleRow))},
                                tensor.device);
    });
  }

  void compare_samples(const std::vector<SampleRow>& rows,
                       int64_t vocab,
                       int64_t shards,
                       double logit_scale,
                       const std::vector<int32_t>& rule_words = {0}) {
    const auto n = static_cast<int64_t>(rows.size());
    const int64_t width = (vocab + shards - 1) / shards;
    Twin logits = random_twin(DType::kF32, {shards, n, width}, logit_scale);
    Twin params = rows_twin(rows);
    std::vector<double> tokens(4 * 64);
    for (double& token : tokens) token = static_cast<double>(random_() % static_cast<uint64_t>(vocab));
    Twin history = twin_of(DType::kI32, {4, 64}, tokens);
    Twin words = output_twin(DType::kI32, {static_cast<int64_t>(rule_words.size())});
    std::memcpy(words.cpu.data, rule_words.data(), rule_words.size() * sizeof(int32_t));
    upload(words);
    Twin records = output_twin(DType::kI32, {n, kSampleRecordWords});
    run_both(&OpTable::sample, [&](auto pick) {
      return SampleParams{.logits = pick(logits),
                          .vocab_size = vocab,
                          .rows = pick(params),
                          .history = pick(history),
                          .rule_words = pick(words),
                          .records = pick(records)};
    });
    const std::vector<std::byte> bytes = download(records);
    for (int64_t i = 0; i < n; ++i) {
      SampleRecord expected, actual;
      std::memcpy(&expected,
                  static_cast<std::byte*>(records.cpu.data) + i * static_cast<int64_t>(sizeof expected),
                  sizeof expected);
      std::memcpy(&actual, bytes.data() + i * static_cast<int64_t>(sizeof actual), sizeof actual);
      SCOPED_TRACE(format("row {}, vocabulary {}", i, vocab));
      EXPECT_EQ(expected.token, actual.token);
      EXPECT_NEAR(expected.logprob, actual.logprob, 1e-4);
      ASSERT_EQ(expected.num_top, actual.num_top);
      for (int t = 0; t < expected.num_top; ++t) {
        EXPECT_EQ(expected.top_ids[t], actual.top_ids[t]);
        EXPECT_NEAR(expected.top_logprobs[t], actual.top_logprobs[t], 1e-4);
      }
    }
  }
};

TEST_F(CudaSampling, DrawsWhatTheCpuDraws) {
  std::vector<SampleRow> rows;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SampleRow row{.slot = static_cast<int32_t>(seed), .position = 40, .prompt_len = 20, .seed = seed};
    rows.push_back(row);
    row.temperature = 0;
    row.num_logprobs = 5;
    rows.push_back(row);
    row.temperature = 0.7f;
    row.top_k = 10;
    rows.push_back(row);
    row.top_k = 0;
    row.top_p = 0.9f;
    row.repetition_penalty = 1.3f;
    rows.push_back(row);
    row.top_k = 50;
    row.min_p = 0.05f;
    row.presence_penalty = 0.5f;
    row.frequency_penalty = 0.25f;
    row.num_banned = 2;
    row.banned[0] = 1;
    row.banned[1] = 3;
    rows.push_back(row);
    row.top_k = 0;
    row.top_p = 1;
    row.num_logprobs = 20;
    rows.push_back(row);
    row.slot = -1;
    rows.push_back(row);
  }
  for (int64_t vocab : {1, 33, 1000, 49152, 128256}) {
    for (int64_t shards : {1, 3}) {
      if (vocab >= shards) compare_samples(rows, vocab, shards, 3);
    }
  }
}

// Rules of every kind, by themselves and together; the vocabulary is small, so that histories repeat and bans
// bite.
TEST_F(CudaSampling, RulesMaskWhatTheyMaskOnTheCpu) {
  for (int64_t vocab : {7, 40, 1500}) {
    const auto id = [&](int i) { return static_cast<int32_t>((i * 17 + 3) % vocab); };
    std::vector<int32_t> allowed;
    for (int i = 0; i < 5; ++i) allowed.push_back(id(i));
    std::vector<TokenBias> biases;
    for (int32_t token = 0; token < 6; ++token) biases.push_back({token, 3.0f - static_cast<float>(token)});
    biases.push_back({100000, 100.0f});
    std::vector<std::vector<int32_t>> bans = {
        {id(0)}, {id(1), id(2)}, std::vector<int32_t>(30, id(3)), {100000}};
    for (int32_t token = 0; token < vocab && token < 7; ++token) bans.push_back({token, 2});
    const LogitRules sets[] = {pack_rules(allowed, {}, {}),
                               pack_rules({}, biases, {}),
                               pack_rules({}, {}, bans),
                               pack_rules(allowed, biases, bans),
                               {}};
    std::vector<int32_t> words = {1, 2, 3};  // of the row with more banned tokens than it holds
    std::vector<SampleRow> rows;
    for (int i = 0; i < 60; ++i) {
      SampleRow row{
          .slot = i % 4, .position = 10 + i % 50, .prompt_len = 5, .seed = static_cast<uint64_t>(i)};
      const LogitRules& rules = sets[i % 5];
      row.temperature = i % 3 == 0 ? 0.0f : 0.8f;
      row.top_k = i % 7 == 0 ? 5 : 0;
      row.num_logprobs = i % 4 - 1;
      row.no_repeat_ngram_size = i % 6 == 5 ? 1 + i / 6 % 3 : 0;
      row.num_more_banned = i % 11 == 0 ? 3 : 0;
      row.known_token = i % 13 == 0 ? static_cast<int32_t>(i % vocab) : -1;
      row.rules = rules.counts;
      row.rules_begin = static_cast<int32_t>(words.size());
      words.insert(words.end(), rules.words.begin(), rules.words.end());
      rows.push_back(row);
    }
    compare_samples(rows, vocab, 1, 3, words);
  }
}

TEST_F(CudaSampling, GreedyOverShards) {
  for (int64_t vocab : {5, 1000, 50001}) {
    const int64_t n = 3;
    Twin logits = random_twin(DType::kF32, {n, vocab + 2});
    set_element(logits.cpu, 2, element(logits.cpu, 1));  // a tie
    for (int64_t v = 0; v < vocab; ++v) set_element(logits.cpu, (vocab + 2) + v, -INFINITY);
    upload(logits);
    std::vector<SampleRow> rows(3);
    rows[0].slot = 0;
    rows[1] = {.slot = 1, .num_banned = 1, .banned = {100}};
    rows[2].slot = -1;
    Twin params = rows_twin(rows);
    Twin best = output_twin(DType::kF32, {2, n, 2});
    run_both(&OpTable::argmax_shard, [&](auto pick) {
      return ArgmaxShardParams{.logits = pick(logits),
                               .vocab_begin = 100,
                               .vocab_size = 100 + vocab,
                               .rows = pick(params),
                               .best = pick(best).rows(0, 1).reshaped({n, 2})};
    });
    run_both(&OpTable::argmax_shard, [&](auto pick) {
      return ArgmaxShardParams{.logits = pick(logits),
                               .vocab_begin = 100 + vocab / 2,
                               .vocab_size = 100 + vocab,
                               .rows = pick(params),
                               .best = pick(best).rows(1, 1).reshaped({n, 2})};
    });
    const std::vector<std::byte> bytes = download(best);
    EXPECT_EQ(std::memcmp(bytes.data(), best.cpu.data, bytes.size()), 0) << "vocabulary " << vocab;
    Twin records = output_twin(DType::kI32, {n, kSampleRecordWords});
    run_both(&OpTable::argmax_merge,
             [&](auto pick) { return ArgmaxMergeParams{.best = pick(best), .records = pick(records)}; });
    expect_same(records, 0);
  }
}

}  // namespace
}  // namespace llm_dist::kernels
