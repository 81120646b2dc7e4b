#include "src/model/loader.h"

#include <cstring>

#include "src/checkpoint/quantize.h"

namespace llm_dist::model {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kStagingBytes = int64_t{16} << 20;
constexpr double kLoadDeadlineSeconds = 3600;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// One read and where it ends up. Through staging where bytes must be converted or the host cannot write to
// the device.
struct Transfer {
  const parallel::WeightPiece* piece = nullptr;
  int64_t row_begin = 0;  // within the piece
  int64_t row_count = 0;
  WeightScheme from = WeightScheme::kF32;
  WeightScheme to = WeightScheme::kF32;
  std::byte* destination = nullptr;

  int64_t source_bytes() const { return row_count * row_bytes(from, piece->col_count); }
  int64_t destination_bytes() const { return row_count * row_bytes(to, piece->col_count); }
};

checkpoint::SliceRequest request_of(const Transfer& transfer, std::byte* destination) {
  return {.name = transfer.piece->tensor,
          .row_begin = transfer.piece->row_begin + transfer.row_begin,
          .row_count = transfer.row_count,
          .col_begin = transfer.piece->col_begin,
          .col_count = transfer.piece->col_count,
          .destination = destination};
}

void convert_row(
    WeightScheme from, const std::byte* source, WeightScheme to, std::byte* out, float* row, int64_t k) {
  checkpoint::dequantize_row(from, source, row, k);
  checkpoint::quantize_row(to, row, out, k);
}

class Reader {
 public:
  Reader(const checkpoint::Checkpoint& checkpoint,
         device::Backend& backend,
         device::Stream& stream,
         checkpoint::ReadOptions options)
      : checkpoint_(checkpoint), backend_(backend), stream_(stream), options_(std::move(options)) {}

  void add(const parallel::WeightPiece& piece, WeightScheme from, WeightScheme to, std::byte* destination) {
    if (from == to && backend_.host_addressable()) {
      direct_.push_back({&piece, 0, piece.row_count, from, to, destination});
      return;
    }
    int64_t rows_at_once = std::max<int64_t>(1, kStagingBytes / row_bytes(from, piece.col_count));
    for (int64_t row = 0; row < piece.row_count; row += rows_at_once) {
      int64_t count = std::min(rows_at_once, piece.row_count - row);
      std::byte* to_row = destination + row * row_bytes(to, piece.col_count);
      staged_.push_back({&piece, row, count, from, to, to_row});
    }
  }

  Result<checkpoint::ReadStats> run() {
    count_total();
    std::vector<checkpoint::SliceRequest> requests;
    requests.reserve(direct_.size());
    for (const Transfer& transfer : direct_) requests.push_back(request_of(transfer, transfer.destination));
    RETURN_IF_ERROR(read(requests));
    RETURN_IF_ERROR(run_staged());
    return stats_;
  }

 private:
  void count_total() {
    for (const auto* transfers : {&direct_, &staged_}) {
      for (const Transfer& transfer : *transfers) total_bytes_ += transfer.source_bytes();
    }
  }

  Status read(const std::vector<checkpoint::SliceRequest>& requests) {
    if (requests.empty()) return ok_status();
    checkpoint::ReadOptions options = options_;
    if (options_.progress) {
      options.progress = [this](int64_t done, int64_t) {
        options_.progress(stats_.slice_bytes + done, total_bytes_);
      };
    }
    ASSIGN_OR_RETURN(checkpoint::ReadStats stats, checkpoint_.read(requests, options));
    stats_.slice_bytes += stats.slice_bytes;
    stats_.bytes_read += stats.bytes_read;
    stats_.requests += stats.requests;
    stats_.seconds += stats.seconds;
    return ok_status();
  }

  // Batches as large as the staging memory: read all of it, convert, copy to the device.
  Status run_staged() {
    if (staged_.empty()) return ok_status();
    int64_t largest = 0;
    for (const Transfer& t : staged_) largest = std::max({largest, t.source_bytes(), t.destination_bytes()});
    int64_t capacity = std::max(largest, kStagingBytes);
    ASSIGN_OR_RETURN(device::Buffer source, backend_.allocate(capacity, device::MemoryKind::kPinned));
    ASSIGN_OR_RETURN(device::Buffer converted, backend_.allocate(capacity, device::MemoryKind::kPinned));
    for (size_t begin = 0; begin < staged_.size();) {
      std::vector<checkpoint::SliceRequest> requests;
      size_t end = begin;
      for (int64_t used_in = 0, used_out = 0; end < staged_.size(); ++end) {
        const Transfer& transfer = staged_[end];
        if (used_in + transfer.source_bytes() > capacity ||
            used_out + transfer.destination_bytes() > capacity)
          break;
        requests.push_back(request_of(transfer, source.data() + used_in));
        used_in += transfer.source_bytes();
        used_out += transfer.destination_bytes();
      }
      RETURN_IF_ERROR(read(requests));
      place(begin, end, source.data(), converted.data());
      RETURN_IF_ERROR(stream_.synchronize(Deadline::after_seconds(kLoadDeadlineSeconds)));
      begin = end;
    }
    return ok_status();
  }

  void convert(const Transfer& transfer, const std::byte* from, std::byte* to) {
    int64_t k = transfer.piece->col_count;
    row_.resize(static_cast<size_t>(k));
    for (int64_t r = 0; r < transfer.row_count; ++r) {
      convert_row(transfer.from,
                  from + r * row_bytes(transfer.from, k),
                  transfer.to,
                  to + r * row_bytes(transfer.to, k),
                  row_.data(),
                  k);
    }
  }

  void place(size_t begin, size_t end, const std::byte* source, std::byte* converted) {
    for (size_t i = begin; i < end; ++i) {
      const Transfer& transfer = staged_[i];
      const std::byte* staged = source;
      if (transfer.from != transfer.to) {
        convert(transfer, source, converted);
        staged = converted;
      }
      int64_t bytes = transfer.destination_bytes();
      stream_.copy(Tensor::contiguous(transfer.destination, DType::kU8, {bytes}, backend_.device()),
                   Tensor::contiguous(const_cast<std::byte*>(staged), DType::kU8, {bytes}));
      source += transfer.source_bytes();
      converted += bytes;
    }
  }

  const checkpoint::Checkpoint& checkpoint_;
  device::Backend& backend_;
  device::Stream& stream_;
  checkpoint::ReadOptions options_;
  std::vector<Transfer> direct_;
  std::vector<Transfer> staged_;
  std::vector<float> row_;
  checkpoint::ReadStats stats_;
  int64_t total_bytes_ = 0;
};

Result<WeightScheme> stored_scheme(const checkpoint::Checkpoint& checkpoint,
                                   const parallel::WeightPiece& piece) {
  const checkpoint::TensorInfo* tensor = checkpoint.find(piece.tensor);
  if (tensor == nullptr) return not_found(format("{} has no tensor {}", checkpoint.path(), piece.tensor));
  int64_t block = scheme_traits(tensor->scheme).block_values;
  if (piece.col_begin % block != 0 || piece.col_count % block != 0) {
    return invalid_argument(
        format("{} is {} in blocks of {} columns; this layout cuts it at columns {} to {}",
               piece.tensor,
               tensor->scheme,
               block,
               piece.col_begin,
               piece.col_begin + piece.col_count));
  }
  return tensor->scheme;
}

// As stored where the kernels take it and all pieces agree; else dense in the activations' dtype.
Result<WeightScheme> held_scheme(const parallel::MatrixSlot& slot,
                                 const checkpoint::Checkpoint& checkpoint,
                                 const kernels::OpTable& ops,
                                 DType activation_dtype) {
  WeightScheme dense = scheme_of(activation_dtype);
  WeightScheme held = dense;
  for (size_t i = 0; i < slot.pieces.size(); ++i) {
    ASSIGN_OR_RETURN(WeightScheme stored, stored_scheme(checkpoint, slot.pieces[i]));
    if (i == 0) held = stored;
    if (stored != held || !ops.takes_weight(stored, activation_dtype)) held = dense;
  }
  return held;
}

Status fill_tables(const parallel::WeightMap& map,
                   const LoadPlan& plan,
                   const device::Buffer& buffer,
                   device::Backend& backend,
                   device::Stream& stream) {
  for (size_t i = 0; i < map.tables.size(); ++i) {
    const parallel::TableSlot& slot = map.tables[i];
    *slot.target = buffer.view(DType::kF32, {slot.rows, slot.cols}, plan.table_offsets[i]);
    ASSIGN_OR_RETURN(device::Buffer values,
                     backend.allocate(slot.target->bytes(), device::MemoryKind::kPinned));
    slot.fill(reinterpret_cast<float*>(values.data()));
    stream.copy(*slot.target, Tensor::contiguous(values.data(), DType::kF32, {slot.rows, slot.cols}));
    RETURN_IF_ERROR(stream.synchronize(Deadline::after_seconds(kLoadDeadlineSeconds)));
  }
  return ok_status();
}

}  // namespace

Result<LoadPlan> plan_load(const parallel::WeightMap& map,
                           const checkpoint::Checkpoint& checkpoint,
                           const kernels::OpTable& ops,
                           DType activation_dtype) {
  LoadPlan plan;
  auto take = [&plan](int64_t bytes) {
    int64_t offset = plan.bytes;
    plan.bytes += aligned(bytes);
    return offset;
  };
  for (const parallel::MatrixSlot& slot : map.matrices) {
    ASSIGN_OR_RETURN(WeightScheme scheme, held_scheme(slot, checkpoint, ops, activation_dtype));
    int64_t bytes = slot.rows * row_bytes(scheme, slot.cols);
    plan.matrices.push_back({&slot, scheme, take(bytes)});
    plan.weight_bytes += bytes;
  }
  for (const parallel::VectorSlot& slot : map.vectors) {
    for (const parallel::WeightPiece& piece : slot.pieces) {
      RETURN_IF_ERROR(stored_scheme(checkpoint, piece).status());
    }
    int64_t bytes = slot.size * dtype_bytes(activation_dtype);
    plan.vector_offsets.push_back(take(bytes));
    plan.weight_bytes += bytes;
  }
  for (const parallel::TableSlot& slot : map.tables) {
    plan.table_offsets.push_back(take(slot.rows * slot.cols * dtype_bytes(DType::kF32)));
  }
  return plan;
}

Result<LoadedWeights> load_weights(const parallel::WeightMap& map,
                                   const LoadPlan& plan,
                                   const checkpoint::Checkpoint& checkpoint,
                                   DType activation_dtype,
                                   device::Backend& backend,
                                   device::Stream& stream,
                                   const checkpoint::ReadOptions& options) {
  LoadedWeights loaded;
  ASSIGN_OR_RETURN(loaded.buffer, backend.allocate(plan.bytes, device::MemoryKind::kDevice));
  Reader reader(checkpoint, backend, stream, options);
  for (const LoadPlan::Matrix& matrix : plan.matrices) {
    const parallel::MatrixSlot& slot = *matrix.slot;
    int64_t stride = row_bytes(matrix.scheme, slot.cols);
    *slot.target = {.scheme = matrix.scheme, .n = slot.rows, .k = slot.cols};
    slot.target->parts[0] = loaded.buffer.view(DType::kU8, {slot.rows, stride}, matrix.offset);
    for (const parallel::WeightPiece& piece : slot.pieces) {
      ASSIGN_OR_RETURN(WeightScheme stored, stored_scheme(checkpoint, piece));
      reader.add(
          piece, stored, matrix.scheme, loaded.buffer.data() + matrix.offset + piece.dest_row * stride);
    }
  }
  WeightScheme dense = scheme_of(activation_dtype);
  for (size_t i = 0; i < map.vectors.size(); ++i) {
    const parallel::VectorSlot& slot = map.vectors[i];
    *slot.target = loaded.buffer.view(activation_dtype, {slot.size}, plan.vector_offsets[i]);
    for (const parallel::WeightPiece& piece : slot.pieces) {
      ASSIGN_OR_RETURN(WeightScheme stored, stored_scheme(checkpoint, piece));
      std::byte* to =
          loaded.buffer.data() + plan.vector_offsets[i] + piece.dest_row * dtype_bytes(activation_dtype);
      reader.add(piece, stored, dense, to);
    }
  }
  ASSIGN_OR_RETURN(loaded.stats, reader.run());
  RETURN_IF_ERROR(fill_tables(map, plan, loaded.buffer, backend, stream));
  return loaded;
}

}  // namespace llm_dist::model
