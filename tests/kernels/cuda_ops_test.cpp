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
      // As if x were a shard that begins with row 2: rows before it and behind its end are zeros.
      Twin of_whole = ints({12, -1, 0, 3, 2, 13, 1});
      Twin of_shard = output_twin(dtype, {7, width});
      run_both(&OpTable::gather_rows, [&](auto pick) {
        return GatherRowsParams{
            .x = pick(table), .x_begin = 2, .x_whole = 14, .rows = pick(of_whole), .out = pick(of_shard)};
      });
      expect_same(of_shard, 0);
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

class CudaSampling : public CudaOpTest {
 protected:
  void use_states(const OpStateOptions& options) {
    gpu_state_.reset();
    gpu_state_ = module_->ops->make_state(*gpu_backend_, options).value();
    cpu_state_ = cpu_ops().make_state(*cpu_backend_, options).value();
  }
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

  void compare_greedy(int64_t n, int64_t vocab) {
    Twin logits = random_twin(DType::kF32, {n, vocab + 2});
    set_element(logits.cpu, 2, element(logits.cpu, 1));  // a tie
    for (int64_t v = 0; v < vocab; ++v) set_element(logits.cpu, (vocab + 2) + v, -INFINITY);
    upload(logits);
    std::vector<SampleRow> rows(static_cast<size_t>(n), {.slot = 0});
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
};

// Rows, and entries of a shard.
constexpr std::pair<int64_t, int64_t> kGreedyShapes[] = {
    {3, 5}, {3, 1000}, {3, 50001}, {65, 1000}, {129, 1000}, {257, 1000}};

// Rows that ask for everything that can be asked for.
std::vector<SampleRow> rows_of_all_kinds() {
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
    // So cold that but a few are near the best: where 500 are reached, all others lie together.
    rows.push_back({.slot = 0, .temperature = 0.05f, .top_k = 500, .seed = seed});
  }
  return rows;
}

TEST_F(CudaSampling, DrawsWhatTheCpuDraws) {
  const std::vector<SampleRow> rows = rows_of_all_kinds();
  for (int64_t vocab : {1, 33, 1000, 49152, 128256}) {
    for (int64_t shards : {1, 3}) {
      if (vocab >= shards) compare_samples(rows, vocab, shards, 3);
    }
  }
  // Nothing but ties, of which the order of ids decides.
  for (int64_t vocab : {1, 33, 5000}) compare_samples(rows, vocab, 1, 0);
}

// By a block a row, whose keys then lie in device memory.
TEST_F(CudaSampling, DrawsWithoutTeamsWhatTheCpuDraws) {
  OpStateOptions options = options_;
  options.row_teams = false;
  use_states(options);
  const std::vector<SampleRow> rows = rows_of_all_kinds();
  for (int64_t vocab : {33, 1000, 128256}) compare_samples(rows, vocab, 3, 3);
  if (!is_hopper()) return;
  EXPECT_GT(module_->ops->workspace_bytes(options), module_->ops->workspace_bytes(options_))
      << "there are teams all the same";
}

// A block's share of the vocabulary does not fit shared memory.
TEST_F(CudaSampling, DrawsFromHugeVocabularies) {
  constexpr int64_t kVocab = 420'000;
  OpStateOptions options = options_;
  options.vocab_size = kVocab;
  use_states(options);
  std::vector<SampleRow> rows;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    rows.push_back({.slot = 0, .position = 40, .prompt_len = 20, .presence_penalty = 0.5f, .seed = seed});
    rows.push_back({.slot = 1, .position = 40, .top_k = 40, .top_p = 0.8f, .seed = seed, .num_logprobs = 3});
  }
  compare_samples(rows, kVocab, 2, 3);
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

// Rows by as many blocks as are to be had and by fewer.
TEST_F(CudaSampling, GreedyOverShards) {
  for (const auto& [n, vocab] : kGreedyShapes) compare_greedy(n, vocab);
}

TEST_F(CudaSampling, GreedyOverShardsWithoutTeams) {
  OpStateOptions options = options_;
  options.row_teams = false;
  use_states(options);
  for (const auto& [n, vocab] : kGreedyShapes) compare_greedy(n, vocab);
}

}  // namespace
}  // namespace llm_dist::kernels
