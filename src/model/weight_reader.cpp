#include "src/model/weight_reader.h"

#include <cmath>

#include "src/base/clock.h"
#include "src/checkpoint/quantize.h"
#include "src/device/staged_copy.h"

namespace llm_dist::model {
namespace {

constexpr int64_t kAlignment = 64;

}  // namespace

bool WeightReader::Transfer::converts() const {
  return from() != read.to || (has_row_scales(read.to) && !source->scales->by_row());
}

// Of a whole row if it stands in order, close to it otherwise.
int64_t WeightReader::Transfer::file_offset() const {
  const checkpoint::TensorInfo& tensor = *source->tensor;
  return tensor.offset + (read.piece->row_begin + row_begin) * tensor.row_bytes();
}

// How many of the first rows may be cut off at least. Permuted heads stay whole: only then do their rows
// stand together in the file.
int64_t WeightReader::Transfer::least_rows() const {
  const int64_t head = std::max<int64_t>(1, source->tensor->interleaved_head_dim);
  return std::min(row_count, head - (read.piece->row_begin + row_begin) % head);
}

// How many of the first `rows` may be cut off.
int64_t WeightReader::Transfer::cut_at_head(int64_t rows) const {
  const int64_t least = least_rows();
  if (rows >= row_count) return row_count;
  if (rows < least) return 0;
  const int64_t head = std::max<int64_t>(1, source->tensor->interleaved_head_dim);
  return least + (rows - least) / head * head;
}

// In rows. A lot is also a request to a file, which is to be no smaller where conversion makes weights
// larger.
int64_t WeightReader::Lot::room_for(const Transfer& transfer, int64_t lot_bytes) const {
  const int64_t of_memory = (lot_bytes - bytes) / transfer.staged_row_bytes();
  const int64_t of_request = (checkpoint::kMinIoBytes - source_bytes) / transfer.source_row_bytes();
  return transfer.cut_at_head(std::max(of_memory, of_request));
}

void WeightReader::Lot::add(Transfer part) {
  part.lot_offset = bytes;
  bytes += (part.row_count * part.staged_row_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  source_bytes += part.row_count * part.source_row_bytes();
  converts |= part.converts();
  transfers.push_back(part);
}

checkpoint::SliceRequest WeightReader::Transfer::request(std::byte* destination) const {
  return {.name = read.piece->tensor,
          .row_begin = read.piece->row_begin + row_begin,
          .row_count = row_count,
          .col_begin = col_begin,
          .col_count = col_count,
          .destination = destination};
}

Status WeightReader::Transfer::convert(const std::byte* stored, std::byte* out) const {
  std::vector<float> floats;
  for (int64_t row = 0; row < row_count; ++row) {
    RETURN_IF_ERROR(
        convert_row(row, stored + row * source_row_bytes(), out + row * destination_row_bytes(), floats));
  }
  return ok_status();
}

// `row`: of the transfer.
Status WeightReader::Transfer::convert_row(int64_t row,
                                           const std::byte* stored,
                                           std::byte* out,
                                           std::vector<float>& floats) const {
  const int64_t row_of_tensor = read.piece->row_begin + row_begin + row;
  floats.resize(static_cast<size_t>(col_count));
  checkpoint::dequantize_row(from(), stored, floats.data(), col_count);
  if (source->scales) source->scales->apply(row_of_tensor, col_begin, floats.data(), col_count);
  const float* wanted = floats.data() + (read.piece->col_begin - col_begin);
  if (!has_row_scales(read.to)) {
    if (read.to == WeightScheme::kF16)
      RETURN_IF_ERROR(
          checkpoint::check_fits_f16(read.piece->tensor, row_of_tensor, wanted, read.piece->col_count));
    checkpoint::quantize_row(read.to, wanted, out, read.piece->col_count);
    return ok_status();
  }
  const float scale = checkpoint::f8_row_scale(floats.data(), col_count);
  if (std::isnan(scale))
    return data_loss(
        format("tensor {} row {} holds a value that is not finite", read.piece->tensor, row_of_tensor));
  checkpoint::quantize_f8(wanted, scale, out, read.piece->col_count);
  read.scales[row_begin + row] = scale;
  return ok_status();
}

Result<const WeightReader::Source*> WeightReader::source_of(const std::string& tensor) {
  auto found = sources_.find(tensor);
  if (found != sources_.end()) return &found->second;
  Source source{.tensor = checkpoint_.find(tensor), .scales = {}};
  if (source.tensor == nullptr) return not_found(format("{} has no tensor {}", checkpoint_.path(), tensor));
  if (has_row_scales(source.tensor->scheme)) {
    ASSIGN_OR_RETURN(source.scales, checkpoint::F8Scales::read(checkpoint_, *source.tensor));
  }
  return &sources_.emplace(tensor, std::move(source)).first->second;
}

Status WeightReader::add(const WeightRead& read) {
  const parallel::WeightPiece& piece = *read.piece;
  ASSIGN_OR_RETURN(const Source* source, source_of(piece.tensor));
  Transfer all{.read = read,
               .source = source,
               .row_count = piece.row_count,
               .col_begin = piece.col_begin,
               .col_count = piece.col_count};
  if (!all.converts() && has_row_scales(read.to)) {
    for (int64_t row = 0; row < piece.row_count; ++row)
      read.scales[row] = source->scales->of_row(piece.row_begin + row);
  }
  if (!all.converts() && backend_.host_addressable()) {
    direct_.push_back(all);
    return ok_status();
  }
  if (all.converts() && has_row_scales(read.to)) {
    all.col_begin = 0;
    all.col_count = source->tensor->cols;
  }
  staged_.push_back(all);
  return ok_status();
}

Result<checkpoint::ReadStats> WeightReader::run() {
  const TimePoint begin = Clock::now();
  for (const auto* transfers : {&direct_, &staged_}) {
    for (const Transfer& transfer : *transfers)
      total_bytes_ += transfer.row_count * transfer.source_row_bytes();
  }
  if (options_.progress) options_.progress(0, total_bytes_);
  RETURN_IF_ERROR(run_direct());
  RETURN_IF_ERROR(run_staged());
  stats_.seconds = seconds_between(begin, Clock::now());
  return stats_;
}

Status WeightReader::run_direct() {
  if (direct_.empty()) return ok_status();
  std::vector<checkpoint::SliceRequest> requests;
  requests.reserve(direct_.size());
  for (const Transfer& transfer : direct_) requests.push_back(transfer.request(transfer.destination()));
  checkpoint::ReadOptions options = options_;
  if (options_.progress)
    options.progress = [this](int64_t done, int64_t) { options_.progress(done, total_bytes_); };
  ASSIGN_OR_RETURN(checkpoint::ReadStats stats, checkpoint_.read(requests, options));
  count(stats);
  return ok_status();
}

Status WeightReader::run_staged() {
  const int threads = std::max(1, options_.threads);
  make_lots(std::min(kLotBytes, options_.max_io_bytes));
  std::vector<std::vector<std::byte>> unconverted(static_cast<size_t>(threads));
  device::StagedCopy work{.lots = lots_.size(),
                          .threads = threads,
                          .deadline_seconds = kLoadDeadlineSeconds,
                          .fill =
                              [&](size_t thread, size_t lot, std::byte* memory) {
                                return fill(lots_[lot], memory, unconverted[thread]);
                              },
                          .copy = [&](size_t lot, std::byte* memory) { copy(lots_[lot], memory); }};
  for (const Lot& lot : lots_) work.lot_bytes = std::max(work.lot_bytes, lot.bytes);
  return device::run_staged_copy(work, backend_, stream_);
}

// Cuts what is staged, in the order of the files, into lots that are full but for less than a row.
void WeightReader::make_lots(int64_t lot_bytes) {
  std::stable_sort(staged_.begin(), staged_.end(), [](const Transfer& a, const Transfer& b) {
    return std::pair(a.source->tensor->file, a.file_offset()) <
           std::pair(b.source->tensor->file, b.file_offset());
  });
  for (Transfer left : staged_) {
    while (left.row_count > 0) {
      int64_t rows = lots_.empty() ? 0 : lots_.back().room_for(left, lot_bytes);
      if (rows == 0) {
        lots_.emplace_back();
        rows = std::max(lots_.back().room_for(left, lot_bytes), left.least_rows());
      }
      Transfer part = left;
      part.row_count = rows;
      lots_.back().add(part);
      left.row_begin += rows;
      left.row_count -= rows;
    }
  }
}

// On a thread of its own. What is converted right after it was read is still in that core's cache.
Status WeightReader::fill(Lot& lot, std::byte* memory, std::vector<std::byte>& unconverted) const {
  if (lot.converts) unconverted.resize(static_cast<size_t>(lot.bytes));
  std::vector<checkpoint::SliceRequest> requests;
  for (const Transfer& transfer : lot.transfers) {
    std::byte* to = transfer.converts() ? unconverted.data() : memory;
    requests.push_back(transfer.request(to + transfer.lot_offset));
  }
  ASSIGN_OR_RETURN(
      lot.stats,
      checkpoint_.read(
          requests,
          {.threads = 1, .max_io_bytes = options_.max_io_bytes, .progress = {}, .stop = options_.stop}));
  for (const Transfer& transfer : lot.transfers) {
    if (!transfer.converts()) continue;
    RETURN_IF_ERROR(transfer.convert(unconverted.data() + transfer.lot_offset, memory + transfer.lot_offset));
  }
  return ok_status();
}

void WeightReader::copy(const Lot& lot, std::byte* memory) {
  for (const Transfer& transfer : lot.transfers) {
    const int64_t bytes = transfer.row_count * transfer.destination_row_bytes();
    stream_.copy(Tensor::contiguous(transfer.destination(), DType::kU8, {bytes}, backend_.device()),
                 Tensor::contiguous(memory + transfer.lot_offset, DType::kU8, {bytes}));
  }
  count(lot.stats);
  if (options_.progress) options_.progress(stats_.slice_bytes, total_bytes_);
}

void WeightReader::count(const checkpoint::ReadStats& stats) {
  stats_.slice_bytes += stats.slice_bytes;
  stats_.bytes_read += stats.bytes_read;
  stats_.requests += stats.requests;
}

}  // namespace llm_dist::model
