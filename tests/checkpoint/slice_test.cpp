#include "src/checkpoint/slice.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>

#include "src/checkpoint/quantize.h"
#include "tests/checkpoint/tiny_model.h"

namespace llm_dist::checkpoint {
namespace {

// What is asked of the kernel, as seen from below the reader.
struct Counter {
  std::atomic<int64_t> bytes = 0;
  std::atomic<int64_t> requests = 0;
  std::atomic<int64_t> small_requests = 0;  // under 1 MiB
};

class CountingFile final : public RandomAccessFile {
 public:
  CountingFile(std::unique_ptr<RandomAccessFile> file, std::shared_ptr<Counter> counter)
      : file_(std::move(file)), counter_(std::move(counter)) {}
  const std::string& path() const override { return file_->path(); }
  int64_t size_bytes() const override { return file_->size_bytes(); }
  void will_need(int64_t, int64_t) const override {}
  Status read_at(int64_t offset, std::span<const iovec> buffers) const override {
    int64_t bytes = 0;
    for (const iovec& buffer : buffers) bytes += static_cast<int64_t>(buffer.iov_len);
    counter_->bytes += bytes;
    ++counter_->requests;
    if (bytes < (1 << 20)) ++counter_->small_requests;
    return file_->read_at(offset, buffers);
  }

 private:
  std::unique_ptr<RandomAccessFile> file_;
  std::shared_ptr<Counter> counter_;
};

CheckpointOptions counting(std::shared_ptr<Counter> counter) {
  CheckpointOptions options;
  options.open_file = [counter](const std::string& path) -> Result<std::unique_ptr<RandomAccessFile>> {
    ASSIGN_OR_RETURN(auto file, open_posix_file(path));
    return std::unique_ptr<RandomAccessFile>(std::make_unique<CountingFile>(std::move(file), counter));
  };
  return options;
}

// What a slice must hold: the tensor's values through the scheme, block by block.
std::vector<std::byte> wanted(const TensorInfo& tensor, const SliceRequest& request) {
  std::vector<std::byte> bytes;
  for (int64_t row = request.row_begin; row < request.row_begin + request.row_count; ++row) {
    std::vector<float> values;
    for (int64_t col = request.col_begin; col < request.col_begin + request.col_count; ++col)
      values.push_back(tiny_value(tensor.name, row, col));
    std::vector<std::byte> stored(static_cast<size_t>(row_bytes(tensor.scheme, request.col_count)));
    quantize_row(tensor.scheme, values.data(), stored.data(), request.col_count);
    bytes.insert(bytes.end(), stored.begin(), stored.end());
  }
  return bytes;
}

void check_part(const Checkpoint& checkpoint, SliceRequest request) {
  const TensorInfo& tensor = *checkpoint.find(request.name);
  const auto want = wanted(tensor, request);
  std::vector<std::byte> got;
  got.resize(want.size());
  request.destination = got.data();
  ASSERT_OK(checkpoint.read(std::span(&request, 1)));
  EXPECT_TRUE(got == want) << tensor.name << " rows " << request.row_begin << " cols " << request.col_begin;
}

// Cuts every tensor of the tiny model in two by rows and by columns (at a block) and compares each part.
void check_all_parts(const Checkpoint& checkpoint) {
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    int64_t rows = tensor.rows / 2;
    int64_t cols = tensor.cols >= 64 ? 32 : 0;
    SliceRequest request{.name = tensor.name, .row_count = rows, .col_count = cols};
    if (cols > 0) check_part(checkpoint, request);
    request.col_begin = cols;
    request.col_count = tensor.cols - cols;
    check_part(checkpoint, request);
    request.row_begin = rows;
    request.row_count = tensor.rows - rows;
    check_part(checkpoint, request);
    check_part(checkpoint, whole(tensor, nullptr));
  }
}

TEST(Slice, EveryPartOfEverySchemeIsExact) {
  for (auto dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    TempDir dir;
    write_tiny_hf(dir, dtype, 3);
    auto checkpoint = Checkpoint::open(dir.path());
    ASSERT_OK(checkpoint);
    check_all_parts(**checkpoint);
  }
  for (auto scheme : {WeightScheme::kF32,
                      WeightScheme::kF16,
                      WeightScheme::kBF16,
                      WeightScheme::kQ8_0,
                      WeightScheme::kQ4_0,
                      WeightScheme::kQ4_1}) {
    TempDir dir;
    write_tiny_gguf(dir / "m.gguf", scheme);
    auto checkpoint = Checkpoint::open(dir.path());
    ASSERT_OK(checkpoint);
    check_all_parts(**checkpoint);
  }
}

// A range that begins and ends inside heads of a permuted tensor.
TEST(Slice, PermutedRowsFromTheMiddleOfAHead) {
  TempDir dir;
  write_tiny_gguf(dir / "m.gguf", WeightScheme::kQ4_1);
  auto checkpoint = Checkpoint::open(dir / "m.gguf");
  ASSERT_OK(checkpoint);
  const TensorInfo& q = *(*checkpoint)->find("model.layers.1.self_attn.q_proj.weight");
  SliceRequest request{.name = q.name, .row_begin = 5, .row_count = 33, .col_begin = 32, .col_count = 32};
  std::vector<std::byte> got(static_cast<size_t>(33 * row_bytes(q.scheme, 32)));
  request.destination = got.data();
  ASSERT_OK((*checkpoint)->read(std::span(&request, 1)));
  EXPECT_TRUE(got == wanted(q, request));
}

TEST(Slice, StrideLeavesPaddingAlone) {
  TempDir dir;
  write_tiny_hf(dir);
  auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_OK(checkpoint);
  const TensorInfo& tensor = *(*checkpoint)->find("model.layers.0.mlp.up_proj.weight");
  constexpr int64_t kStride = 64 * 4 + 12;
  std::vector<std::byte> got(static_cast<size_t>(96 * kStride), std::byte{0x5a});
  SliceRequest request = whole(tensor, got.data());
  request.destination_row_stride_bytes = kStride;
  ASSERT_OK((*checkpoint)->read(std::span(&request, 1)));
  auto want = wanted(tensor, request);
  for (size_t row = 0; row < 96; ++row) {
    EXPECT_EQ(std::memcmp(got.data() + row * kStride, want.data() + row * 256, 256), 0) << row;
    for (size_t i = 256; i < kStride; ++i) EXPECT_EQ(got[row * kStride + i], std::byte{0x5a});
  }
}

TEST(Slice, BadRequestsNameTheTensor) {
  TempDir dir;
  write_tiny_gguf(dir / "m.gguf", WeightScheme::kQ4_1);
  auto checkpoint = Checkpoint::open(dir / "m.gguf");
  ASSERT_OK(checkpoint);
  std::vector<std::byte> memory(1 << 16);
  const std::string name = "model.layers.0.mlp.down_proj.weight";  // [64, 96]
  auto attempt = [&](SliceRequest request) {
    request.destination = memory.data();
    return (*checkpoint)->read(std::span(&request, 1));
  };
  auto invalid = StatusCode::kInvalidArgument;
  expect_failure(attempt({.name = "nope", .row_count = 1, .col_count = 32}), StatusCode::kNotFound, {"nope"});
  expect_failure(attempt({.name = name, .row_begin = 60, .row_count = 5, .col_count = 32}),
                 invalid,
                 {name, "5 rows from 60"});
  expect_failure(attempt({.name = name, .row_begin = -1, .row_count = 5, .col_count = 32}), invalid, {name});
  expect_failure(
      attempt({.name = name, .row_count = 1, .col_begin = 96, .col_count = 32}), invalid, {name, "columns"});
  expect_failure(attempt({.name = name, .row_count = 1, .col_begin = 16, .col_count = 32}),
                 invalid,
                 {name, "cut a block of 32"});
  expect_failure(
      attempt({.name = name, .row_count = 1, .col_count = 48}), invalid, {name, "cut a block of 32"});
  expect_failure(attempt({.name = name, .row_count = 1, .col_count = 32, .destination_row_stride_bytes = 8}),
                 invalid,
                 {name, "stride"});
  SliceRequest homeless{.name = name, .row_count = 1, .col_count = 32};
  expect_failure((*checkpoint)->read(std::span(&homeless, 1)), invalid, {name, "destination"});
}

// One matrix of 24 MiB beside a vector, in bf16: big enough for large requests to be possible.
struct BigFile {
  static constexpr int64_t kRows = 3072;
  static constexpr int64_t kCols = 4096;
  BigFile() {
    std::vector<BFloat16> data(static_cast<size_t>(kRows * kCols));
    for (size_t i = 0; i < data.size(); ++i) data[i].bits = static_cast<uint16_t>(i * 2654435761u >> 13);
    std::vector<BFloat16> one(64);
    TensorToWrite tensors[] = {tensor_in_memory("one", DType::kBF16, {64}, one.data()),
                               tensor_in_memory("big", DType::kBF16, {kRows, kCols}, data.data())};
    EXPECT_TRUE(write_safetensors(dir / "big.safetensors", tensors).ok());
    auto file = open_posix_file(dir / "big.safetensors");
    infos = *read_safetensors_header(**file, 0);
    files.push_back(std::make_unique<CountingFile>(std::move(*file), counter));
    expected = std::move(data);
  }
  const TensorInfo& big() const { return infos[0].name == "big" ? infos[0] : infos[1]; }

  // Reads [rows × cols] of "big" and checks every value; returns what the reader says it did.
  ReadStats read(int64_t row_begin,
                 int64_t row_count,
                 int64_t col_begin,
                 int64_t col_count,
                 const ReadOptions& options) {
    counter->bytes = counter->requests = counter->small_requests = 0;
    std::vector<BFloat16> got(static_cast<size_t>(row_count * col_count));
    SliceRequest request{.name = "big",
                         .row_begin = row_begin,
                         .row_count = row_count,
                         .col_begin = col_begin,
                         .col_count = col_count,
                         .destination = reinterpret_cast<std::byte*>(got.data())};
    auto slice = resolve(big(), request);
    EXPECT_TRUE(slice.ok());
    auto stats = read_slices(std::span(&*slice, 1), files, options);
    EXPECT_TRUE(stats.ok()) << stats.status().to_string();
    for (int64_t row = 0; row < row_count; ++row)
      EXPECT_EQ(std::memcmp(got.data() + row * col_count,
                            expected.data() + (row_begin + row) * kCols + col_begin,
                            static_cast<size_t>(col_count * 2)),
                0)
          << row;
    return *stats;
  }

  TempDir dir;
  std::shared_ptr<Counter> counter = std::make_shared<Counter>();
  std::vector<std::unique_ptr<RandomAccessFile>> files;
  std::vector<TensorInfo> infos;
  std::vector<BFloat16> expected;
};

TEST(Slice, RowSlicesAreFewLargeRequests) {
  BigFile file;
  ReadStats stats = file.read(0, 1536, 0, BigFile::kCols, {.threads = 2, .progress = {}, .stop = {}});
  EXPECT_EQ(stats.bytes_read, 1536 * 8192);
  EXPECT_EQ(stats.bytes_read, file.counter->bytes);
  EXPECT_EQ(stats.requests, 2);  // 12 MiB in requests of up to 8
  EXPECT_EQ(file.counter->small_requests, 0);
}

TEST(Slice, ColumnSlicesReadNothingElse) {
  BigFile file;
  ReadStats stats = file.read(0, BigFile::kRows, 1024, 1024, {.threads = 2, .progress = {}, .stop = {}});
  EXPECT_EQ(stats.slice_bytes, BigFile::kRows * 2048);
  EXPECT_LE(static_cast<double>(file.counter->bytes), 1.02 * static_cast<double>(stats.slice_bytes));
}

// All but a sliver of each row: reading over the gaps is cheaper, and allowed while they stay small.
TEST(Slice, SmallGapsAreReadOver) {
  BigFile file;
  ReadStats stats =
      file.read(0, BigFile::kRows, 0, BigFile::kCols - 16, {.threads = 1, .progress = {}, .stop = {}});
  EXPECT_LT(stats.requests, 20);
  EXPECT_LE(static_cast<double>(file.counter->bytes), 1.02 * static_cast<double>(stats.slice_bytes));
}

TEST(Slice, ProgressCountsUpToTheTotal) {
  BigFile file;
  int64_t last = 0;
  int64_t total = 0;
  auto progress = [&](int64_t done, int64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  };
  file.read(
      0, BigFile::kRows, 0, 2048, {.threads = 3, .max_io_bytes = 1 << 20, .progress = progress, .stop = {}});
  EXPECT_EQ(total, BigFile::kRows * 4096);
  EXPECT_EQ(last, total);
}

TEST(Slice, StopsWhenAsked) {
  BigFile file;
  std::stop_source source;
  source.request_stop();
  std::vector<std::byte> memory(static_cast<size_t>(file.big().bytes()));
  SliceRequest request = whole(file.big(), memory.data());
  auto slice = resolve(file.big(), request);
  ASSERT_OK(slice);
  auto outcome = read_slices(std::span(&*slice, 1), file.files, {.progress = {}, .stop = source.get_token()});
  expect_failure(outcome, StatusCode::kCancelled, {"stopped"});
  EXPECT_EQ(file.counter->requests, 0);
}

// Rank slices of the whole GGUF model, all at once: at most 1.02 times their bytes, and neighbours are
// joined.
TEST(Slice, RankSharesOfAModelStayWithinTheirBytes) {
  TempDir dir;
  write_tiny_gguf(dir / "m.gguf", WeightScheme::kQ4_1);
  auto counter = std::make_shared<Counter>();
  auto checkpoint = Checkpoint::open(dir / "m.gguf", LoadFormat::kGguf, counting(counter));
  ASSERT_OK(checkpoint);
  counter->bytes = counter->requests = 0;
  std::vector<SliceRequest> requests;
  std::vector<std::vector<std::byte>> memory;
  for (const TensorInfo& tensor : (*checkpoint)->tensors()) {
    memory.emplace_back(static_cast<size_t>(tensor.bytes()));
    requests.push_back(whole(tensor, memory.back().data()));
  }
  auto stats = (*checkpoint)->read(requests);
  ASSERT_OK(stats);
  EXPECT_EQ(counter->bytes, stats->bytes_read);
  EXPECT_LE(static_cast<double>(stats->bytes_read), 1.02 * static_cast<double>(stats->slice_bytes));
  EXPECT_EQ(stats->requests, 1);
}

// A file that shrank after it was opened.
TEST(Slice, TruncationAfterOpeningIsDataLoss) {
  TempDir dir;
  write_tiny_hf(dir);
  auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_OK(checkpoint);
  ASSERT_EQ(::truncate((dir / "model.safetensors").c_str(), 8000), 0);
  std::vector<std::byte> memory(1 << 20);
  SliceRequest request = whole((*checkpoint)->tensors().back(), memory.data());
  for (const TensorInfo& tensor : (*checkpoint)->tensors())
    if (tensor.offset > 8000) request = whole(tensor, memory.data());
  expect_failure((*checkpoint)->read(std::span(&request, 1)),
                 StatusCode::kDataLoss,
                 {"model.safetensors", "ends at byte"});
}

}  // namespace
}  // namespace llm_dist::checkpoint
