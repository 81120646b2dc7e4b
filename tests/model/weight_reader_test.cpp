// Weights on their way to a device in many lots. That single rows are converted right is for loader_test.
#include "src/model/weight_reader.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/checkpoint/tiny_model.h"
#include "tests/device/separate_backend.h"

namespace llm_dist::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::expect_failure;
using checkpoint::RandomAccessFile;
using checkpoint::tiny_value;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kHidden = 512;
constexpr int64_t kInner = 3000;

const std::string kUp = "model.layers.0.mlp.up_proj.weight";      // [kInner, kHidden]
const std::string kDown = "model.layers.0.mlp.down_proj.weight";  // [kHidden, kInner]
const std::string kNorm = "model.norm.weight";
const std::string kQ = "model.layers.0.self_attn.q_proj.weight";

checkpoint::ModelConfig config_of(int64_t hidden, int64_t inner) {
  checkpoint::ModelConfig config = checkpoint::tiny_config();
  config.num_layers = 1;
  config.hidden_size = hidden;
  config.intermediate_size = inner;
  return config;
}

// What files see of those who read them.
struct Seen {
  std::atomic<int> reading = 0;
  std::atomic<int> reads = 0;
  std::atomic<int> reads_that_work = 1 << 30;  // those behind fail
};

class WatchedFile final : public RandomAccessFile {
 public:
  WatchedFile(std::unique_ptr<RandomAccessFile> file, Seen& seen) : file_(std::move(file)), seen_(seen) {}
  const std::string& path() const override { return file_->path(); }
  int64_t size_bytes() const override { return file_->size_bytes(); }
  void will_need(int64_t, int64_t) const override {}
  Status read_at(int64_t offset, std::span<const iovec> buffers) const override {
    ++seen_.reading;
    const bool fails = seen_.reads++ >= seen_.reads_that_work;
    Status status = fails ? data_loss(format("{}: cannot read", path())) : file_->read_at(offset, buffers);
    --seen_.reading;
    return status;
  }

 private:
  std::unique_ptr<RandomAccessFile> file_;
  Seen& seen_;
};

std::unique_ptr<Checkpoint> open(const std::string& path, Seen& seen) {
  checkpoint::CheckpointOptions options{.load_tokenizer = false};
  options.open_file = [&seen](const std::string& file) -> Result<std::unique_ptr<RandomAccessFile>> {
    ASSIGN_OR_RETURN(auto opened, checkpoint::open_posix_file(file));
    return std::unique_ptr<RandomAccessFile>(std::make_unique<WatchedFile>(std::move(opened), seen));
  };
  auto opened = Checkpoint::open(path, checkpoint::LoadFormat::kAuto, options);
  CHECK(opened.ok(), "{}", opened.status().to_string());
  seen.reads = 0;
  return std::move(opened).value();
}

struct Outcome {
  Status status;
  checkpoint::ReadStats stats;
  std::vector<std::byte> bytes;  // of one piece behind the other
  std::vector<float> scales;
  std::vector<int64_t> progress;
};

Outcome read(const Checkpoint& checkpoint,
             device::Backend& backend,
             const std::vector<parallel::WeightPiece>& pieces,
             WeightScheme to,
             checkpoint::ReadOptions options) {
  Outcome outcome;
  int64_t bytes = 0;
  int64_t rows = 0;
  for (const auto& piece : pieces) {
    bytes += piece.row_count * row_bytes(to, piece.col_count);
    rows += piece.row_count;
  }
  outcome.scales.resize(static_cast<size_t>(rows));
  options.progress = [&, inner = options.progress](int64_t done, int64_t total) {
    outcome.progress.push_back(done);
    if (inner) inner(done, total);
  };
  device::Buffer memory = backend.allocate(bytes, device::MemoryKind::kDevice).value();
  auto stream = backend.make_stream("load");
  WeightReader reader(checkpoint, backend, *stream, options);
  std::byte* destination = memory.data();
  float* scales = outcome.scales.data();
  for (const auto& piece : pieces) {
    outcome.status = reader.add({.piece = &piece, .to = to, .destination = destination, .scales = scales});
    CHECK(outcome.status.ok());
    destination += piece.row_count * row_bytes(to, piece.col_count);
    scales += piece.row_count;
  }
  auto stats = reader.run();
  outcome.status = stats.status();
  if (stats.ok()) outcome.stats = *stats;
  outcome.bytes.assign(memory.data(), memory.data() + bytes);
  return outcome;
}

checkpoint::ReadOptions in_lots_of(int64_t bytes, int threads) {
  return {.threads = threads, .max_io_bytes = bytes, .progress = {}, .stop = {}};
}

class WeightReaderTest : public testing::Test {
 protected:
  // Freed while a file is read into it, or behind an error, memory would be written to by someone else.
  WeightReaderTest() : separate_({.cpu = {}, .on_release = [this] { EXPECT_EQ(seen_.reading, 0); }}) {}

  void write(const checkpoint::ModelConfig& config) {
    checkpoint::write_tiny_hf(dir_, DType::kBF16, 2, config);
    checkpoint_ = open(dir_.path(), seen_);
  }

  checkpoint::TempDir dir_;
  Seen seen_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<device::Backend> host_ = device::make_cpu_backend({});
  device::SeparateBackend separate_;
};

// Rows, columns and vectors out of two files, in another order than they stand there.
const std::vector<parallel::WeightPiece> kPieces = {{kNorm, 0, kHidden, 0, 1},
                                                    {kDown, 0, kHidden, 1024, 1500},
                                                    {kUp, 3, 2900, 0, kHidden},
                                                    {kDown, 5, 400, 0, kInner},
                                                    {kQ, 0, 64, 0, kHidden}};

TEST_F(WeightReaderTest, ADeviceHasWhatTheHostHas) {
  write(config_of(kHidden, kInner));
  const Outcome host = read(*checkpoint_, *host_, kPieces, WeightScheme::kBF16, {});
  ASSERT_OK(host.status);
  for (int threads : {1, 3, 16}) {
    const Outcome device =
        read(*checkpoint_, separate_, kPieces, WeightScheme::kBF16, in_lots_of(kMiB, threads));
    ASSERT_OK(device.status);
    EXPECT_TRUE(device.bytes == host.bytes) << threads;
    EXPECT_EQ(device.stats.slice_bytes, static_cast<int64_t>(host.bytes.size()));
    EXPECT_LE(static_cast<double>(device.stats.bytes_read),
              1.02 * static_cast<double>(device.stats.slice_bytes));
  }
}

TEST_F(WeightReaderTest, WhereLotsAreCutDoesNotMatterToConversion) {
  write(config_of(kHidden, kInner));
  for (WeightScheme to : {WeightScheme::kF32, WeightScheme::kF8E4M3}) {
    const Outcome large = read(*checkpoint_, *host_, kPieces, to, in_lots_of(2 * kMiB, 1));
    ASSERT_OK(large.status);
    for (int threads : {1, 3}) {
      const Outcome lots = read(*checkpoint_, separate_, kPieces, to, in_lots_of(kMiB, threads));
      ASSERT_OK(lots.status);
      EXPECT_TRUE(lots.bytes == large.bytes) << to_string(to);
      EXPECT_TRUE(lots.scales == large.scales) << to_string(to);
      EXPECT_EQ(lots.stats.slice_bytes, large.stats.slice_bytes);
    }
  }
  const Outcome floats =
      read(*checkpoint_, separate_, {{kUp, 7, 2000, 0, kHidden}}, WeightScheme::kF32, in_lots_of(kMiB, 3));
  for (int64_t row = 0; row < 2000; ++row) {
    const auto* values = reinterpret_cast<const float*>(floats.bytes.data()) + row * kHidden;
    for (int64_t col = 0; col < kHidden; ++col) ASSERT_EQ(values[col], tiny_value(kUp, 7 + row, col)) << row;
  }
}

// 2048 rows of 1 KiB, cut every MiB; behind them, rows of another tensor that begin in the same lot.
TEST_F(WeightReaderTest, LotsAreFullAndReadAtOnce) {
  write(config_of(kHidden, kInner));
  const Outcome one =
      read(*checkpoint_, separate_, {{kUp, 0, 2048, 0, kHidden}}, WeightScheme::kBF16, in_lots_of(kMiB, 3));
  EXPECT_EQ(one.stats.requests, 2);
  EXPECT_EQ(one.stats.bytes_read, 2 * kMiB);
  const int64_t total = 2 * kInner * kHidden * 2;
  const Outcome two = read(*checkpoint_,
                           separate_,
                           {{kUp, 0, kInner, 0, kHidden}, {kDown, 0, kHidden, 0, kInner}},
                           WeightScheme::kBF16,
                           in_lots_of(kMiB, 3));
  EXPECT_EQ(two.stats.bytes_read, total);
  EXPECT_EQ(seen_.reads, 2 + two.stats.requests);
  EXPECT_EQ(two.stats.requests, (total + kMiB - 1) / kMiB + 1) << "one more where a tensor ends";
  // Every lot counts up to the total, also where several threads read.
  EXPECT_TRUE(std::is_sorted(two.progress.begin(), two.progress.end()));
  EXPECT_EQ(two.progress.back(), total);
}

// 4.5 bits a value in the file, 32 in memory: 1.7 MB of a file are 12 of memory, and yet two requests.
TEST_F(WeightReaderTest, RequestsAreNoSmallerWhereConversionMakesWeightsLarger) {
  checkpoint::ModelConfig config = config_of(kHidden, 6016);
  config.head_dim = kHidden / config.num_heads;
  checkpoint::write_tiny_gguf(dir_ / "m.gguf", WeightScheme::kQ4_0, config);
  checkpoint_ = open(dir_ / "m.gguf", seen_);
  const std::vector<parallel::WeightPiece> pieces = {{kUp, 0, 6016, 0, kHidden}};
  const Outcome outcome = read(*checkpoint_, separate_, pieces, WeightScheme::kF32, in_lots_of(kMiB, 2));
  ASSERT_OK(outcome.status);
  EXPECT_EQ(outcome.stats.requests, 2);
}

// Rows of 1.2 MB and of 16 bytes through lots of 1 MiB.
TEST_F(WeightReaderTest, RowsWiderThanALot) {
  write(config_of(8, 600000));
  const std::vector<parallel::WeightPiece> pieces = {{kDown, 1, 5, 0, 600000}, {kUp, 0, 600000, 0, 8}};
  const Outcome host = read(*checkpoint_, *host_, pieces, WeightScheme::kBF16, {});
  const Outcome device = read(*checkpoint_, separate_, pieces, WeightScheme::kBF16, in_lots_of(kMiB, 2));
  ASSERT_OK(device.status);
  EXPECT_TRUE(device.bytes == host.bytes);
}

// Half a head of a permuted tensor is every second row of the file.
TEST_F(WeightReaderTest, PermutedHeadsAreReadWhole) {
  checkpoint::ModelConfig config = config_of(1024, 96);
  config.num_heads = 8;
  config.head_dim = 128;  // 512 KiB each
  config.num_kv_heads = 1;
  checkpoint::write_tiny_gguf(dir_ / "m.gguf", WeightScheme::kF32, config);
  checkpoint_ = open(dir_ / "m.gguf", seen_);
  ASSERT_EQ(checkpoint_->find(kQ)->interleaved_head_dim, 128);
  const std::vector<parallel::WeightPiece> pieces = {{kQ, 0, 1024, 0, 1024}, {kQ, 40, 500, 0, 1024}};
  const Outcome host = read(*checkpoint_, *host_, pieces, WeightScheme::kF32, {});
  const int64_t lot = 5 * kMiB / 4;  // two heads and a half
  const Outcome device = read(*checkpoint_, separate_, pieces, WeightScheme::kF32, in_lots_of(lot, 2));
  ASSERT_OK(device.status);
  EXPECT_TRUE(device.bytes == host.bytes);
  const Outcome heads =
      read(*checkpoint_, separate_, {{kQ, 0, 1024, 0, 1024}}, WeightScheme::kF32, in_lots_of(lot, 2));
  EXPECT_EQ(heads.stats.requests, 4);
}

TEST_F(WeightReaderTest, AReadThatFailsInTheMiddleEndsIt) {
  write(config_of(kHidden, kInner));
  for (int threads : {1, 4}) {
    for (WeightScheme to : {WeightScheme::kBF16, WeightScheme::kF32}) {
      seen_.reads = 0;
      seen_.reads_that_work = 3;
      const Outcome outcome = read(*checkpoint_, separate_, kPieces, to, in_lots_of(kMiB, threads));
      expect_failure(outcome.status, StatusCode::kDataLoss, {"safetensors: cannot read"});
    }
  }
}

TEST_F(WeightReaderTest, StopsWhenAsked) {
  write(config_of(kHidden, kInner));
  std::stop_source source;
  checkpoint::ReadOptions options = in_lots_of(kMiB, 1);
  options.stop = source.get_token();
  options.progress = [&](int64_t, int64_t) { source.request_stop(); };
  const Outcome outcome =
      read(*checkpoint_, separate_, {{kUp, 0, kInner, 0, kHidden}}, WeightScheme::kF32, options);
  expect_failure(outcome.status, StatusCode::kCancelled, {"stopped"});
}

TEST_F(WeightReaderTest, MemoryDoesNotGrowWithTheWeights) {
  write(config_of(kHidden, kInner));
  ASSERT_OK(read(*checkpoint_, separate_, kPieces, WeightScheme::kF32, in_lots_of(kMiB, 2)).status);
  EXPECT_LE(separate_.pinned_buffers(), 4);
}

}  // namespace
}  // namespace llm_dist::model
