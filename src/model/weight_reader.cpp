#include "src/model/weight_reader.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "src/checkpoint/quantize.h"

namespace llm_dist::model {
namespace {

constexpr int64_t kStagingBytes = int64_t{64} << 20;
constexpr size_t kStagings = 2;
constexpr int64_t kLeastValuesPerThread = 1 << 18;  // below, starting a thread costs more than it saves

}  // namespace

bool WeightReader::Transfer::converts() const {
  return from() != read.to || (has_row_scales(read.to) && !source->scales->by_row());
}

checkpoint::SliceRequest WeightReader::Transfer::request(std::byte* destination) const {
  return {.name = read.piece->tensor,
          .row_begin = read.piece->row_begin + row_begin,
          .row_count = row_count,
          .col_begin = col_begin,
          .col_count = col_count,
          .destination = destination};
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
  int64_t rows_at_once = std::max<int64_t>(1, kStagingBytes / row_bytes(all.from(), all.col_count));
  for (int64_t row = 0; row < piece.row_count; row += rows_at_once) {
    Transfer some = all;
    some.row_begin = row;
    some.row_count = std::min(rows_at_once, piece.row_count - row);
    staged_.push_back(some);
  }
  return ok_status();
}

Result<checkpoint::ReadStats> WeightReader::run() {
  count_total();
  std::vector<checkpoint::SliceRequest> requests;
  requests.reserve(direct_.size());
  for (const Transfer& transfer : direct_) requests.push_back(transfer.request(transfer.destination()));
  RETURN_IF_ERROR(read(requests));
  RETURN_IF_ERROR(run_staged());
  return stats_;
}

void WeightReader::count_total() {
  for (const auto* transfers : {&direct_, &staged_}) {
    for (const Transfer& transfer : *transfers) total_bytes_ += transfer.source_bytes();
  }
}

Status WeightReader::read(const std::vector<checkpoint::SliceRequest>& requests) {
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

Result<WeightReader::Staging> WeightReader::make_staging(int64_t capacity) const {
  Staging made;
  ASSIGN_OR_RETURN(made.source, backend_.allocate(capacity, device::MemoryKind::kPinned));
  if (std::any_of(staged_.begin(), staged_.end(), [](const Transfer& t) { return t.converts(); })) {
    ASSIGN_OR_RETURN(made.converted, backend_.allocate(capacity, device::MemoryKind::kPinned));
  }
  made.copied = backend_.make_event();
  return made;
}

Status WeightReader::run_staged() {
  if (staged_.empty()) return ok_status();
  int64_t capacity = kStagingBytes;
  for (const Transfer& t : staged_) capacity = std::max({capacity, t.source_bytes(), t.destination_bytes()});
  std::array<Staging, kStagings> stagings;
  for (Staging& staging : stagings) {
    ASSIGN_OR_RETURN(staging, make_staging(capacity));
  }
  // Every thread has a few reads of a batch.
  options_.max_io_bytes = std::clamp(
      capacity / (4 * std::max(1, options_.threads)), checkpoint::kMinIoBytes, options_.max_io_bytes);
  Status outcome = run_batches(capacity, stagings);
  // The memory goes, also behind an error: no copy may still read it.
  Status copied = stream_.synchronize(Deadline::after_seconds(kLoadDeadlineSeconds));
  return outcome.ok() ? copied : outcome;
}

// Batches as large as the staging memory: read all of it, convert, copy to the device. While one is copied
// the next is read.
Status WeightReader::run_batches(int64_t capacity, std::span<Staging> stagings) {
  size_t turn = 0;
  for (size_t begin = 0; begin < staged_.size();) {
    Staging& staging = stagings[turn++ % stagings.size()];
    if (turn > stagings.size())
      RETURN_IF_ERROR(staging.copied->wait(Deadline::after_seconds(kLoadDeadlineSeconds)));
    std::vector<checkpoint::SliceRequest> requests;
    size_t end = begin;
    for (int64_t used_in = 0, used_out = 0; end < staged_.size(); ++end) {
      const Transfer& transfer = staged_[end];
      if (used_in + transfer.source_bytes() > capacity || used_out + transfer.destination_bytes() > capacity)
        break;
      requests.push_back(transfer.request(staging.source.data() + used_in));
      used_in += transfer.source_bytes();
      used_out += transfer.destination_bytes();
    }
    RETURN_IF_ERROR(read(requests));
    RETURN_IF_ERROR(place(begin, end, staging.source.data(), staging.converted.data()));
    stream_.record(*staging.copied);
    begin = end;
  }
  return ok_status();
}

Status WeightReader::convert(const Transfer& transfer, const std::byte* from, std::byte* to) const {
  const int64_t stored_bytes = row_bytes(transfer.from(), transfer.col_count);
  const int64_t out_bytes = row_bytes(transfer.read.to, transfer.read.piece->col_count);
  const int64_t rows_at_once = std::max<int64_t>(1, kLeastValuesPerThread / 8 / transfer.col_count);
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  Status outcome;
  auto work = [&] {
    std::vector<float> floats;
    for (int64_t row = next.fetch_add(rows_at_once); row < transfer.row_count;
         row = next.fetch_add(rows_at_once)) {
      for (int64_t r = row; r < std::min(row + rows_at_once, transfer.row_count); ++r) {
        Status status = transfer.convert_row(r, from + r * stored_bytes, to + r * out_bytes, floats);
        if (status.ok()) continue;
        std::lock_guard lock(mutex);
        if (outcome.ok()) outcome = std::move(status);
        return;
      }
    }
  };
  {
    const int64_t useful = transfer.row_count * transfer.col_count / kLeastValuesPerThread;
    std::vector<std::jthread> helpers;
    for (int64_t i = 1; i < std::min<int64_t>(options_.threads, useful); ++i) helpers.emplace_back(work);
    work();
  }
  return outcome;
}

Status WeightReader::place(size_t begin, size_t end, std::byte* source, std::byte* converted) {
  for (size_t i = begin; i < end; ++i) {
    const Transfer& transfer = staged_[i];
    std::byte* staged = source;
    if (transfer.converts()) {
      RETURN_IF_ERROR(convert(transfer, source, converted));
      staged = converted;
      converted += transfer.destination_bytes();
    }
    int64_t bytes = transfer.destination_bytes();
    stream_.copy(Tensor::contiguous(transfer.destination(), DType::kU8, {bytes}, backend_.device()),
                 Tensor::contiguous(staged, DType::kU8, {bytes}));
    source += transfer.source_bytes();
  }
  return ok_status();
}

}  // namespace llm_dist::model
