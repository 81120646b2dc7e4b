// WeightReader: pieces of checkpoint tensors, read, converted where memory holds them in another scheme, and
// copied to where a rank wants them.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/weight_map.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/f8_scales.h"
#include "src/device/backend.h"

namespace llm_dist::model {

constexpr double kLoadDeadlineSeconds = 3600;

struct WeightRead {
  const parallel::WeightPiece* piece = nullptr;
  WeightScheme to = WeightScheme::kF32;
  std::byte* destination = nullptr;  // of the piece's first row, in the device's memory
  float* scales = nullptr;           // likewise, in the host's, where `to` has_row_scales
};

class WeightReader {
 public:
  // What a thread reads at once, where it is staged: large enough for one request and one copy, small enough
  // for a ring of lots to stay in the processor's cache, out of which it is then copied.
  static constexpr int64_t kLotBytes = int64_t{2} << 20;

  WeightReader(const checkpoint::Checkpoint& checkpoint,
               device::Backend& backend,
               device::Stream& stream,
               checkpoint::ReadOptions options)
      : checkpoint_(checkpoint), backend_(backend), stream_(stream), options_(std::move(options)) {}

  // Reads nothing but scales yet.
  Status add(const WeightRead& read);
  Result<checkpoint::ReadStats> run();

 private:
  struct Source {
    const checkpoint::TensorInfo* tensor = nullptr;
    std::optional<checkpoint::F8Scales> scales;
  };
  // Some rows of a piece. Through staging where bytes must be converted or the host cannot write to the
  // device; rows that are quantized with one scale each are read whole, for the scale's sake.
  struct Transfer {
    WeightRead read;
    const Source* source = nullptr;
    int64_t row_begin = 0;  // within the piece
    int64_t row_count = 0;
    int64_t col_begin = 0;  // of what is read
    int64_t col_count = 0;
    int64_t lot_offset = 0;  // in the memory of its lot

    WeightScheme from() const { return source->tensor->scheme; }
    int64_t source_row_bytes() const { return row_bytes(from(), col_count); }
    int64_t destination_row_bytes() const { return row_bytes(read.to, read.piece->col_count); }
    int64_t staged_row_bytes() const { return std::max(source_row_bytes(), destination_row_bytes()); }
    std::byte* destination() const { return read.destination + row_begin * destination_row_bytes(); }
    bool converts() const;
    int64_t file_offset() const;
    int64_t least_rows() const;
    int64_t cut_at_head(int64_t rows) const;
    checkpoint::SliceRequest request(std::byte* destination) const;
    Status convert(const std::byte* stored, std::byte* out) const;
    Status convert_row(int64_t row,
                       const std::byte* stored,
                       std::byte* out,
                       std::vector<float>& floats) const;
  };

  // What one thread reads at once, of one place in a file.
  struct Lot {
    std::vector<Transfer> transfers;
    int64_t bytes = 0;         // of memory, as many before conversion as after it
    int64_t source_bytes = 0;  // of them, read
    bool converts = false;
    checkpoint::ReadStats stats;

    int64_t room_for(const Transfer& transfer, int64_t lot_bytes) const;
    void add(Transfer part);
  };

  Result<const Source*> source_of(const std::string& tensor);
  Status run_direct();
  Status run_staged();
  void make_lots(int64_t lot_bytes);
  Status fill(Lot& lot, std::byte* memory, std::vector<std::byte>& unconverted) const;
  void copy(const Lot& lot, std::byte* memory);
  void count(const checkpoint::ReadStats& stats);

  const checkpoint::Checkpoint& checkpoint_;
  device::Backend& backend_;
  device::Stream& stream_;
  checkpoint::ReadOptions options_;
  std::map<std::string, Source> sources_;
  std::vector<Transfer> direct_;
  std::vector<Transfer> staged_;
  std::vector<Lot> lots_;  // of what is staged
  checkpoint::ReadStats stats_;
  int64_t total_bytes_ = 0;
};

}  // namespace llm_dist::model
