// Slices: what a rank reads of a tensor, and how reading is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "src/base/status.h"
#include "src/checkpoint/file.h"
#include "src/checkpoint/tensor_info.h"

namespace llm_dist::checkpoint {

// Rows [row_begin, row_begin + row_count) × columns [col_begin, col_begin + col_count) of a tensor, in
// Hugging Face row order whatever the file's, into the caller's memory. Bytes are stored as the tensor's
// scheme says; columns begin and end at block boundaries. Padding is the caller's.
struct SliceRequest {
  std::string name;
  int64_t row_begin = 0;
  int64_t row_count = 0;
  int64_t col_begin = 0;
  int64_t col_count = 0;
  std::byte* destination = nullptr;
  int64_t destination_row_stride_bytes = 0;  // from one row to the next; 0: rows stand back to back
};

// The whole of `tensor`, rows back to back.
SliceRequest whole(const TensorInfo& tensor, std::byte* destination);

inline constexpr int64_t kMinIoBytes = int64_t{1} << 20;

struct ReadOptions {
  int threads = 4;
  int64_t max_io_bytes = int64_t{8} << 20;  // of one request; at least kMinIoBytes
  // Called with bytes of slices finished and wanted, a few hundred times, one call at a time, from any
  // thread.
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress;
  std::stop_token stop;  // ends the reading with kCancelled within one request's time
};

struct ReadStats {
  int64_t slice_bytes = 0;  // what was wanted
  int64_t bytes_read = 0;   // what was asked of the kernel; 0 for dummy weights
  int64_t requests = 0;
  double seconds = 0.0;
};

// A request with its tensor found and its numbers checked.
struct ResolvedSlice {
  const TensorInfo* tensor = nullptr;
  const SliceRequest* request = nullptr;

  int64_t row_bytes() const { return llm_dist::row_bytes(tensor->scheme, request->col_count); }
  int64_t bytes() const { return request->row_count * row_bytes(); }
  int64_t stride() const {
    int64_t stride = request->destination_row_stride_bytes;
    return stride == 0 ? row_bytes() : stride;
  }
  bool whole_rows() const { return request->col_count == tensor->cols; }
  std::byte* destination_of(int64_t row) const {
    return request->destination + (row - request->row_begin) * stride();
  }
};

// kInvalidArgument, naming the tensor, where the slice leaves it, cuts a block or has no destination.
Result<ResolvedSlice> resolve(const TensorInfo& tensor, const SliceRequest& request);

// A run of rows of one slice: the unit that a thread works on.
struct SliceChunk {
  const ResolvedSlice* slice = nullptr;
  int64_t row_begin = 0;
  int64_t row_count = 0;

  int64_t bytes() const { return row_count * slice->row_bytes(); }
};

// Reads the slices: pieces that lie next to each other in a file, also of several slices, become one request
// of up to max_io_bytes; across a gap a request goes on only where the gaps stay under 1 % of it.
Result<ReadStats> read_slices(std::span<const ResolvedSlice> slices,
                              std::span<const std::unique_ptr<RandomAccessFile>> files,
                              const ReadOptions& options);

// Does the same with `fill` in place of files.
Result<ReadStats> fill_slices(std::span<const ResolvedSlice> slices,
                              const std::function<void(const SliceChunk&)>& fill,
                              const ReadOptions& options);

}  // namespace llm_dist::checkpoint
