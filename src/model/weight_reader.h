// WeightReader: pieces of checkpoint tensors, read, converted where memory holds them in another scheme, and
// copied to where a rank wants them.
#pragma once

#include <map>
#include <memory>
#include <span>
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

    WeightScheme from() const { return source->tensor->scheme; }
    int64_t source_bytes() const { return row_count * row_bytes(from(), col_count); }
    int64_t destination_bytes() const { return row_count * row_bytes(read.to, read.piece->col_count); }
    std::byte* destination() const {
      return read.destination + row_begin * row_bytes(read.to, read.piece->col_count);
    }
    bool converts() const;
    checkpoint::SliceRequest request(std::byte* destination) const;
    Status convert_row(int64_t row,
                       const std::byte* stored,
                       std::byte* out,
                       std::vector<float>& floats) const;
  };

  // Pinned memory of a batch, free for another one when its copies have ended.
  struct Staging {
    device::Buffer source;
    device::Buffer converted;  // none where no transfer converts
    std::unique_ptr<device::Event> copied;
  };

  Result<const Source*> source_of(const std::string& tensor);
  void count_total();
  Status read(const std::vector<checkpoint::SliceRequest>& requests);
  Result<Staging> make_staging(int64_t capacity) const;
  Status run_staged();
  Status run_batches(int64_t capacity, std::span<Staging> stagings);
  Status convert(const Transfer& transfer, const std::byte* from, std::byte* to) const;
  Status place(size_t begin, size_t end, std::byte* source, std::byte* converted);

  const checkpoint::Checkpoint& checkpoint_;
  device::Backend& backend_;
  device::Stream& stream_;
  checkpoint::ReadOptions options_;
  std::map<std::string, Source> sources_;
  std::vector<Transfer> direct_;
  std::vector<Transfer> staged_;
  checkpoint::ReadStats stats_;
  int64_t total_bytes_ = 0;
};

}  // namespace llm_dist::model
