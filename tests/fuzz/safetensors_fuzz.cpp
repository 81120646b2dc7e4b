// The header of a safetensors file: what is accepted tiles the file, reads, and reads back when written
// again.
#include <map>

#include "src/base/small_file.h"
#include "src/checkpoint/safetensors.h"
#include "tests/fuzz/memory_file.h"

namespace llm_dist::fuzz {
namespace {

using checkpoint::TensorInfo;
using Contents = std::map<std::string, std::string>;

DType dtype_of(WeightScheme scheme) {
  if (scheme == WeightScheme::kF32) return DType::kF32;
  if (scheme == WeightScheme::kF8E4M3) return DType::kF8E4M3;
  return scheme == WeightScheme::kF16 ? DType::kF16 : DType::kBF16;
}

Contents contents_of(std::span<const TensorInfo> tensors, std::string_view bytes) {
  Contents contents;
  for (const TensorInfo& tensor : tensors) {
    auto begin = static_cast<size_t>(tensor.offset);
    bool added =
        contents.emplace(tensor.name, bytes.substr(begin, static_cast<size_t>(tensor.bytes()))).second;
    CHECK(added, "{} twice", tensor.name);
  }
  return contents;
}

void expect_reads(std::span<const TensorInfo> tensors, std::string_view bytes, const Contents& contents) {
  std::vector<std::unique_ptr<checkpoint::RandomAccessFile>> files;
  files.push_back(std::make_unique<MemoryFile>("m", bytes));
  for (const TensorInfo& tensor : tensors) {
    std::string got(static_cast<size_t>(tensor.bytes()), '\0');
    checkpoint::SliceRequest request = checkpoint::whole(tensor, reinterpret_cast<std::byte*>(got.data()));
    auto slice = checkpoint::resolve(tensor, request);
    CHECK(slice.ok(), "{}", slice.status().to_string());
    auto read = checkpoint::read_slices({&*slice, 1}, files, {});
    CHECK(read.ok(), "{}", read.status().to_string());
    CHECK(got == contents.at(tensor.name), "{}", tensor.name);
  }
}

void expect_round_trip(std::span<const TensorInfo> tensors, const Contents& contents) {
  static const ScratchFolder scratch;
  std::vector<checkpoint::TensorToWrite> to_write;
  for (const TensorInfo& tensor : tensors)
    to_write.push_back(checkpoint::tensor_in_memory(
        tensor.name, dtype_of(tensor.scheme), {tensor.rows, tensor.cols}, contents.at(tensor.name).data()));
  const std::string path = scratch.path_of("again.safetensors");
  Status written = checkpoint::write_safetensors(path, to_write);
  CHECK(written.ok(), "{}", written.to_string());
  auto text = read_small_file(path, int64_t{1} << 30);
  CHECK(text.ok(), "{}", text.status().to_string());
  auto again = checkpoint::read_safetensors_header(MemoryFile("again", *text), 0);
  CHECK(again.ok(), "{}", again.status().to_string());
  CHECK(contents_of(*again, *text) == contents);
}

}  // namespace
}  // namespace llm_dist::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llm_dist;
  std::string_view bytes = fuzz::text_of(data, size);
  fuzz::MemoryFile file("m.safetensors", bytes);
  auto tensors = checkpoint::read_safetensors_header(file, 0);
  if (!tensors.ok()) {
    fuzz::expect_message(tensors.status());
    CHECK(tensors.status().message().starts_with("m.safetensors"), "{}", tensors.status().message());
    return 0;
  }
  uint64_t header_bytes = 0;
  file.read_bytes(0, &header_bytes, sizeof(header_bytes)).code();
  int64_t total = fuzz::expect_apart(*tensors, file.size_bytes());
  CHECK_EQ(total + static_cast<int64_t>(header_bytes) + 8, file.size_bytes());
  auto contents = fuzz::contents_of(*tensors, bytes);
  fuzz::expect_reads(*tensors, bytes, contents);
  fuzz::expect_round_trip(*tensors, contents);
  return 0;
}
