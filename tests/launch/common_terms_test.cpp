#include "launch/common_terms.h"

#include "tests/checkpoint/tiny_model.h"

namespace llm_dist::launch {
namespace {

using checkpoint::Checkpoint;
using checkpoint::LoadFormat;
using checkpoint::TempDir;

std::string terms_of(const std::string& path,
                     const engine::EngineOptions& options = {},
                     LoadFormat format = LoadFormat::kAuto) {
  auto opened = Checkpoint::open(path, format, {.load_tokenizer = false});
  CHECK(opened.ok(), "{}", opened.status().to_string());
  auto terms = common_terms(options, **opened);
  CHECK(terms.ok(), "{}", terms.status().to_string());
  return pack(*terms);
}

Status compare(const std::string& mine, const std::string& theirs) {
  const std::vector<comm::HostInfo> hosts = {
      {.hostname = "node0"}, {.hostname = "node0"}, {.hostname = "node1"}};
  return refuse_different_terms(std::vector<std::string>{mine, mine, theirs}, hosts);
}

TEST(CommonTerms, OfTheSameModelInOtherFilesAreTheSame) {
  TempDir one;
  TempDir other;
  checkpoint::write_tiny_hf(one);
  checkpoint::write_tiny_hf(other, DType::kF32, 3);
  EXPECT_TRUE(compare(terms_of(one.path()), terms_of(other.path())).ok());
}

TEST(CommonTerms, TheFirstDifferenceIsNamed) {
  TempDir dir;
  checkpoint::write_tiny_hf(dir);
  const std::string mine = terms_of(dir.path());
  auto expect = [&](const engine::EngineOptions& options, const std::string& words) {
    checkpoint::expect_failure(compare(mine, terms_of(dir.path(), options)),
                               StatusCode::kInvalidArgument,
                               {"rank 2 on node1 has " + words});
  };
  expect({.block_size = 8}, "--block-size 8, rank 0 on node0 has 16");
  expect({.layout = {.tp = 2}, .block_size = 8}, "--layout TP 2 × PP 1, rank 0 on node0 has TP 1 × PP 1");
  expect({.dtype = DType::kBF16}, "--dtype bf16, rank 0");
  expect({.graph_sizes = {1, 2}}, "sizes of --cuda-graph-sizes 1 2, rank 0 on node0 has none");
  expect({.prune_last_layer = false}, "--disable-last-layer-pruning on, rank 0");
  // What a rank may have its own of.
  EXPECT_TRUE(
      compare(mine, terms_of(dir.path(), {.kv_cache_bytes = 1, .threads = 7, .load_threads = 9})).ok());
}

TEST(CommonTerms, OtherWeightsOfTheSameShapesAreSeen) {
  TempDir one;
  TempDir other;
  checkpoint::write_tiny_hf(one);
  checkpoint::write_tiny_hf(other);
  std::string bytes = checkpoint::read_file(other / "model.safetensors");
  bytes[bytes.size() - 3] ^= 1;  // of the last tensor, the norm in front of the logits
  checkpoint::write_file(other / "model.safetensors", bytes);
  checkpoint::expect_failure(compare(terms_of(one.path()), terms_of(other.path())),
                             StatusCode::kInvalidArgument,
                             {"rank 2 on node1 has weights with the hash"});
}

TEST(CommonTerms, OtherShapesAndOtherSchemesAreSeen) {
  TempDir one;
  TempDir other;
  checkpoint::write_tiny_hf(one);
  auto config = checkpoint::tiny_config();
  config.rope.theta *= 2;
  checkpoint::write_tiny_hf(other, DType::kF32, 1, config);
  checkpoint::expect_failure(compare(terms_of(one.path()), terms_of(other.path())),
                             StatusCode::kInvalidArgument,
                             {"a configuration of the model with the hash"});
  checkpoint::write_tiny_hf(other, DType::kF16);
  checkpoint::expect_failure(compare(terms_of(one.path()), terms_of(other.path())),
                             StatusCode::kInvalidArgument,
                             {"tensors of the model with the hash"});
  checkpoint::expect_failure(compare(terms_of(one.path()), terms_of(one.path(), {}, LoadFormat::kDummy)),
                             StatusCode::kInvalidArgument,
                             {"--load-format dummy, rank 0 on node0 has safetensors"});
}

}  // namespace
}  // namespace llm_dist::launch
