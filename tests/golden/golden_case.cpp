#include "tests/golden/golden_case.h"

#include <fstream>
#include <sstream>

#include "parallel/partition.h"

namespace llm_dist::engine {
namespace {

constexpr size_t kMaxSlots = 64;
constexpr int64_t kMaxRows = 1024;

std::vector<int32_t> rest_of(std::istringstream& line) {
  std::vector<int32_t> numbers;
  for (int32_t number; line >> number;) numbers.push_back(number);
  return numbers;
}

std::vector<float> read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  CHECK(file.good(), "{}", path);
  std::vector<float> values(static_cast<size_t>(file.tellg()) / sizeof(float));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

}  // namespace

GoldenCase load_golden(const std::string& name) {
  std::string folder = std::string(LLM_DIST_SOURCE_DIR) + "/tests/golden/data/" + name;
  GoldenCase golden{.name = name};
  auto checkpoint =
      checkpoint::Checkpoint::open(folder, checkpoint::LoadFormat::kAuto, {.load_tokenizer = false});
  CHECK(checkpoint.ok(), "{}", checkpoint.status().to_string());
  golden.checkpoint = std::move(checkpoint).value();
  std::ifstream text(folder + "/golden.txt");
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "gap") words >> golden.gap;
    if (key == "prompt") golden.prompts.push_back(rest_of(words));
    if (key == "tokens") golden.tokens.push_back(rest_of(words));
  }
  golden.logits = read_floats(folder + "/logits.f32");
  CHECK_EQ(golden.logits.size(),
           golden.prompts.size() * golden.tokens.at(0).size() * static_cast<size_t>(golden.vocab_size()));
  return golden;
}

EngineOptions golden_options(const parallel::Layout& layout, DType dtype) {
  return {.layout = layout,
          .dtype = dtype,
          .kv_dtype = dtype,
          .max_model_len = 64,
          .block_size = 4,
          .max_num_seqs = 8,
          .max_num_batched_tokens = 16,
          .num_blocks = 128,
          .step_deadline_seconds = 60};
}

EngineOptions golden_options(const GoldenCase& golden, const parallel::Layout& layout, DType dtype) {
  EngineOptions options = golden_options(layout, dtype);
  if (golden.checkpoint->config().head_dim < 64) return options;
  options.max_model_len = 256;
  options.block_size = 16;
  options.max_num_batched_tokens = 144;
  options.num_blocks = 64;
  return options;
}

LogitsRecorder::LogitsRecorder(const parallel::Layout& layout,
                               int64_t vocab_size,
                               std::unique_ptr<device::Backend> backend)
    : layout_(layout),
      vocab_size_(vocab_size),
      backend_(std::move(backend)),
      ranks_(static_cast<size_t>(layout.tp)) {
  // The last shard is padded to the others' length.
  const int64_t most = (vocab_size + layout.tp - 1) / layout.tp;
  for (Rank& rank : ranks_) {
    rank.slot_seeds.resize(kMaxSlots);
    rank.memory =
        backend_->allocate(kMaxRows * most * dtype_bytes(DType::kF32), device::MemoryKind::kPinned).value();
  }
}

EngineHooks LogitsRecorder::hooks(int rank) {
  parallel::Mesh mesh(layout_, rank);
  if (!mesh.last_stage()) return {};
  Rank& mine = ranks_[static_cast<size_t>(mesh.rank_tp())];
  return {.on_logits = [this, &mine](const sched::StepPlan& plan,
                                     const Tensor& logits,
                                     device::Stream& stream) { record(mine, plan, logits, stream); }};
}

void LogitsRecorder::record(Rank& rank,
                            const sched::StepPlan& plan,
                            const Tensor& logits,
                            device::Stream& stream) {
  for (const sched::SlotStart& start : plan.starts)
    rank.slot_seeds[static_cast<size_t>(start.slot)] = start.seed;
  int64_t index = 0;
  for (const sched::SlotRun& run : plan.runs) {
    index += run.num_scores;
    if (run.samples == 0) continue;
    const auto count = static_cast<size_t>(logits.dim(1));
    const auto next = static_cast<int64_t>(rank.rows.size());
    CHECK(next < kMaxRows, "more rows than are recorded");
    const Tensor place = rank.memory.view(DType::kF32, {kMaxRows, logits.dim(1)}).rows(next, 1);
    rank.rows.push_back({.seed = rank.slot_seeds[static_cast<size_t>(run.slot)],
                         .position = run.begin + run.count,
                         .shard = {static_cast<float*>(place.data), count}});
    stream.copy(place, logits.rows(index, 1));
    ++index;
  }
}

std::vector<float> LogitsRecorder::row(uint64_t seed, int64_t position) const {
  std::vector<float> whole;
  for (int rank = 0; rank < layout_.tp; ++rank) {
    auto shard = parallel::shard_vocab(vocab_size_, layout_.tp, rank);
    for (const auto& row : ranks_[static_cast<size_t>(rank)].rows) {
      if (row.seed != seed || row.position != position) continue;
      whole.insert(whole.end(), row.shard.begin(), row.shard.begin() + shard.count);
      break;
    }
  }
  return whole;
}

}  // namespace llm_dist::engine
