#include "src/checkpoint/slice.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "src/base/clock.h"
#include "src/checkpoint/gguf_model.h"

namespace llm_dist::checkpoint {
namespace {

constexpr int64_t kMaxRowsAGroup = 65536;  // bounds the memory of a group's plan
constexpr int64_t kMaxGapBytes = 4096;

// Consecutive bytes of a file that go to consecutive bytes of memory.
struct Piece {
  int64_t offset;
  std::byte* destination;
  int64_t bytes;
};

using Group = std::vector<SliceChunk>;

int64_t first_offset(const SliceChunk& chunk) {
  const TensorInfo& tensor = *chunk.slice->tensor;
  int64_t col_offset = row_bytes(tensor.scheme, chunk.slice->request->col_begin);
  return tensor.offset + chunk.row_begin * tensor.row_bytes() + col_offset;
}

// Cuts a slice into runs of rows of at most max_bytes. Runs of a tensor with permuted heads end at heads,
// whose rows are contiguous in the file only together.
void append_chunks(const ResolvedSlice& slice, int64_t max_bytes, std::vector<SliceChunk>& chunks) {
  int64_t rows = std::clamp<int64_t>(max_bytes / slice.row_bytes(), 1, kMaxRowsAGroup);
  int64_t head_dim = slice.tensor->interleaved_head_dim;
  if (head_dim > 0) rows = std::max(head_dim, rows / head_dim * head_dim);
  int64_t end = slice.request->row_begin + slice.request->row_count;
  for (int64_t row = slice.request->row_begin; row < end;) {
    int64_t next = head_dim > 0 ? (row + rows) / head_dim * head_dim : row + rows;
    next = std::min(end, next);
    chunks.push_back({.slice = &slice, .row_begin = row, .row_count = next - row});
    row = next;
  }
}

// Chunks in file order, gathered to groups of up to max_io_bytes of one file.
std::vector<Group> plan_groups(std::span<const ResolvedSlice> slices, int64_t max_io_bytes) {
  std::vector<SliceChunk> chunks;
  for (const ResolvedSlice& slice : slices)
    if (slice.bytes() > 0) append_chunks(slice, max_io_bytes, chunks);
  std::stable_sort(chunks.begin(), chunks.end(), [](const SliceChunk& a, const SliceChunk& b) {
    return std::pair(a.slice->tensor->file, first_offset(a)) <
           std::pair(b.slice->tensor->file, first_offset(b));
  });
  std::vector<Group> groups;
  int64_t bytes = 0;
  int64_t rows = 0;
  for (const SliceChunk& chunk : chunks) {
    bool fits = !groups.empty() && groups.back().back().slice->tensor->file == chunk.slice->tensor->file &&
                bytes + chunk.bytes() <= max_io_bytes && rows + chunk.row_count <= kMaxRowsAGroup;
    if (!fits) {
      groups.emplace_back();
      bytes = rows = 0;
    }
    groups.back().push_back(chunk);
    bytes += chunk.bytes();
    rows += chunk.row_count;
  }
  return groups;
}

void append_pieces(const SliceChunk& chunk, std::vector<Piece>& pieces) {
  const ResolvedSlice& slice = *chunk.slice;
  const TensorInfo& tensor = *slice.tensor;
  int64_t row_bytes = slice.row_bytes();
  bool in_order = tensor.interleaved_head_dim == 0;
  if (in_order && slice.whole_rows() && slice.stride() == row_bytes) {
    pieces.push_back({first_offset(chunk), slice.destination_of(chunk.row_begin), chunk.bytes()});
    return;
  }
  int64_t col_offset = llm_dist::row_bytes(tensor.scheme, slice.request->col_begin);
  for (int64_t row = chunk.row_begin; row < chunk.row_begin + chunk.row_count; ++row) {
    int64_t file_row = in_order ? row : interleaved_row(row, tensor.interleaved_head_dim);
    pieces.push_back(
        {tensor.offset + file_row * tensor.row_bytes() + col_offset, slice.destination_of(row), row_bytes});
  }
}

std::vector<Piece> pieces_of(const Group& group) {
  std::vector<Piece> pieces;
  for (const SliceChunk& chunk : group) append_pieces(chunk, pieces);
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
  return pieces;
}

// How many of the pieces from the first on are read with one request, and its bytes with the gaps between
// them.
struct Batch {
  size_t count = 0;
  int64_t bytes = 0;
};

Batch next_batch(std::span<const Piece> pieces) {
  Batch batch{.count = 1, .bytes = pieces[0].bytes};
  int64_t gaps = 0;
  while (batch.count < pieces.size()) {
    const Piece& piece = pieces[batch.count];
    int64_t gap = piece.offset - (pieces[0].offset + batch.bytes);
    if (gap < 0 || gap > kMaxGapBytes || (gaps + gap) * 100 > batch.bytes + piece.bytes) break;
    gaps += gap;
    batch.bytes += gap + piece.bytes;
    ++batch.count;
  }
  return batch;
}

// One thread's reading, with the memory it reuses.
class BatchReader {
 public:
  BatchReader(const RandomAccessFile& file, int64_t max_io_bytes)
      : file_(file), max_io_bytes_(max_io_bytes) {}

  Status read(std::span<const Piece> pieces, const Batch& batch) {
    if (batch.count == 1) return read_one(pieces[0]);
    if (2 * batch.count <= IOV_MAX) return read_scattered(pieces, batch);
    return read_staged(pieces, batch);
  }
  int64_t bytes_read() const { return bytes_read_; }
  int64_t requests() const { return requests_; }

 private:
  Status read_one(const Piece& piece) {
    for (int64_t done = 0; done < piece.bytes; done += max_io_bytes_) {
      int64_t bytes = std::min(max_io_bytes_, piece.bytes - done);
      count(bytes);
      RETURN_IF_ERROR(file_.read_bytes(piece.offset + done, piece.destination + done, bytes));
    }
    return ok_status();
  }
  Status read_scattered(std::span<const Piece> pieces, const Batch& batch) {
    buffers_.clear();
    int64_t offset = pieces[0].offset;
    for (const Piece& piece : pieces.first(batch.count)) {
      if (piece.offset > offset) buffers_.push_back({gap_, static_cast<size_t>(piece.offset - offset)});
      buffers_.push_back({piece.destination, static_cast<size_t>(piece.bytes)});
      offset = piece.offset + piece.bytes;
    }
    count(batch.bytes);
    return file_.read_at(pieces[0].offset, buffers_);
  }
  // More pieces than one preadv takes are small ones: copying them costs less than further system calls.
  Status read_staged(std::span<const Piece> pieces, const Batch& batch) {
    staging_.resize(static_cast<size_t>(batch.bytes));
    count(batch.bytes);
    RETURN_IF_ERROR(file_.read_bytes(pieces[0].offset, staging_.data(), batch.bytes));
    for (const Piece& piece : pieces.first(batch.count))
      std::memcpy(piece.destination,
                  staging_.data() + (piece.offset - pieces[0].offset),
                  static_cast<size_t>(piece.bytes));
    return ok_status();
  }
  void count(int64_t bytes) {
    bytes_read_ += bytes;
    ++requests_;
  }

  const RandomAccessFile& file_;
  int64_t max_io_bytes_;
  int64_t bytes_read_ = 0;
  int64_t requests_ = 0;
  std::vector<iovec> buffers_;
  std::vector<std::byte> staging_;
  std::byte gap_[kMaxGapBytes];
};

Status read_group(const Group& group,
                  const RandomAccessFile& file,
                  const ReadOptions& options,
                  ReadStats& stats) {
  auto pieces = pieces_of(group);
  int64_t wanted = 0;
  for (const Piece& piece : pieces) wanted += piece.bytes;
  int64_t span = pieces.back().offset + pieces.back().bytes - pieces.front().offset;
  // The ranks of a node want the rest of these pages; asking for all of them saves seeks.
  if (span > wanted + wanted / 50 && span <= 64 * wanted) file.will_need(pieces.front().offset, span);
  BatchReader reader(file, options.max_io_bytes);
  for (std::span<const Piece> left = pieces; !left.empty();) {
    Batch batch = next_batch(left);
    RETURN_IF_ERROR(reader.read(left, batch));
    left = left.subspan(batch.count);
  }
  stats.slice_bytes = wanted;
  stats.bytes_read = reader.bytes_read();
  stats.requests = reader.requests();
  return ok_status();
}

using DoGroup = std::function<Status(const Group&, ReadStats&)>;

// Threads take groups in file order until none is left, one fails, or the caller stops them.
class GroupRunner {
 public:
  GroupRunner(std::vector<Group> groups, const ReadOptions& options, DoGroup do_group)
      : groups_(std::move(groups)), options_(options), do_group_(std::move(do_group)) {
    for (const Group& group : groups_)
      for (const SliceChunk& chunk : group) total_bytes_ += chunk.bytes();
  }

  Result<ReadStats> run() {
    TimePoint begin = Clock::now();
    auto threads =
        std::clamp<size_t>(static_cast<size_t>(std::max(1, options_.threads)), 1, groups_.size() + 1);
    {
      std::vector<std::jthread> helpers;
      for (size_t i = 1; i < threads; ++i) helpers.emplace_back([this] { work(); });
      work();
    }
    RETURN_IF_ERROR(status_);
    stats_.seconds = seconds_between(begin, Clock::now());
    return stats_;
  }

 private:
  void work() {
    for (size_t index = next_++; index < groups_.size(); index = next_++) {
      ReadStats stats;
      Status status = options_.stop.stop_requested() ? cancelled("reading weights was stopped")
                                                     : do_group_(groups_[index], stats);
      std::lock_guard lock(mutex_);
      if (!status.ok() && status_.ok()) status_ = status;
      if (!status_.ok()) return;
      stats_.slice_bytes += stats.slice_bytes;
      stats_.bytes_read += stats.bytes_read;
      stats_.requests += stats.requests;
      if (options_.progress) options_.progress(stats_.slice_bytes, total_bytes_);
    }
  }

  std::vector<Group> groups_;
  const ReadOptions& options_;
  DoGroup do_group_;
  int64_t total_bytes_ = 0;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  Status status_;
  ReadStats stats_;
};

}  // namespace

SliceRequest whole(const TensorInfo& tensor, std::byte* destination) {
  return {
      .name = tensor.name, .row_count = tensor.rows, .col_count = tensor.cols, .destination = destination};
}

Result<ResolvedSlice> resolve(const TensorInfo& tensor, const SliceRequest& request) {
  auto bad = [&](const std::string& why) {
    return invalid_argument(format("tensor {}: {}", tensor.name, why));
  };
  auto inside = [](int64_t begin, int64_t count, int64_t size) {
    return begin >= 0 && count >= 0 && begin <= size && count <= size - begin;
  };
  if (!inside(request.row_begin, request.row_count, tensor.rows))
    return bad(format("{} rows from {} on, it has {}", request.row_count, request.row_begin, tensor.rows));
  if (!inside(request.col_begin, request.col_count, tensor.cols))
    return bad(format("{} columns from {} on, it has {}", request.col_count, request.col_begin, tensor.cols));
  int64_t block = scheme_traits(tensor.scheme).block_values;
  if (request.col_begin % block != 0 || request.col_count % block != 0)
    return bad(format("columns [{}, {}) cut a block of {} values",
                      request.col_begin,
                      request.col_begin + request.col_count,
                      block));
  ResolvedSlice slice{.tensor = &tensor, .request = &request};
  if (request.destination == nullptr && slice.bytes() > 0) return bad("no destination");
  if (slice.stride() < slice.row_bytes())
    return bad(format("a row of {} bytes in a stride of {}", slice.row_bytes(), slice.stride()));
  return slice;
}

Result<ReadStats> read_slices(std::span<const ResolvedSlice> slices,
                              std::span<const std::unique_ptr<RandomAccessFile>> files,
                              const ReadOptions& options) {
  CHECK_GE(options.max_io_bytes, kMinIoBytes);
  GroupRunner runner(
      plan_groups(slices, options.max_io_bytes), options, [&](const Group& group, ReadStats& stats) {
        auto file = static_cast<size_t>(group.front().slice->tensor->file);
        return read_group(group, *files[file], options, stats);
      });
  return runner.run();
}

Result<ReadStats> fill_slices(std::span<const ResolvedSlice> slices,
                              const std::function<void(const SliceChunk&)>& fill,
                              const ReadOptions& options) {
  GroupRunner runner(plan_groups(slices, kMinIoBytes), options, [&](const Group& group, ReadStats& stats) {
    for (const SliceChunk& chunk : group) {
      fill(chunk);
      stats.slice_bytes += chunk.bytes();
    }
    return ok_status();
  });
  return runner.run();
}

}  // namespace llm_dist::checkpoint
