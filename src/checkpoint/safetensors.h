// The safetensors format: u64 header length, a JSON header {name: {dtype, shape, data_offsets}}, then the
// data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "src/base/dtype.h"
#include "src/base/status.h"
#include "src/checkpoint/file.h"
#include "src/checkpoint/tensor_info.h"

namespace llm_dist::checkpoint {

constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Every tensor of the file, `file_index` in each, offsets from the file's start. Only the header is read.
// kDataLoss, naming file and tensor, where the header is truncated, malformed or contradicts itself or the
// file; kUnimplemented for an element type that is no weight of ours.
Result<std::vector<TensorInfo>> read_safetensors_header(const RandomAccessFile& file, int32_t file_index);

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  // Writes `count` rows (of axis 0; the whole of a vector is rows of one value) from `row` on to
  // `destination`.
  std::function<Status(int64_t row, int64_t count, std::byte* destination)> fill;
};

// A tensor that stands in memory; `data` outlives the writing.
TensorToWrite tensor_in_memory(std::string name, DType dtype, std::vector<int64_t> shape, const void* data);

// Streams the tensors into `path`, a few MiB at a time.
Status write_safetensors(const std::string& path,
                         std::span<const TensorToWrite> tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace llm_dist::checkpoint
