// Arena: a rank's activations, planned before the first request. A layer names what it needs; layers that use
// the same name share the memory, since one forward pass runs at a time and a pass uses each name for one
// purpose.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/device/backend.h"

namespace llm_dist::parallel {

enum class RowKind : uint8_t {
  kTokens,       // up to max_num_batched_tokens, padded
  kLocalTokens,  // this rank's share of them under sequence parallelism, else all
  kSamples,      // up to max_num_seqs, padded
};

struct ArenaRows {
  int64_t tokens = 0;
  int64_t local_tokens = 0;
  int64_t samples = 0;
};

class Arena {
 public:
  using Id = int;

  explicit Arena(ArenaRows max_rows) : max_rows_(max_rows) {}

  // The widest request under a name counts. All requests under a name agree on kind and dtype.
  Id declare(const std::string& name, RowKind kind, int64_t features, DType dtype);
  int64_t bytes() const;
  Status allocate(device::Backend& backend);
  // [rows, features], contiguous, at the same address every step.
  Tensor get(Id id, int64_t rows, int64_t features) const;

 private:
  struct Entry {
    std::string name;
    RowKind kind;
    int64_t features;
    DType dtype;
    int64_t offset = 0;
  };
  int64_t entry_bytes(const Entry& entry) const;

  ArenaRows max_rows_;
  std::vector<Entry> entries_;
  device::Buffer buffer_;
};

}  // namespace llm_dist::parallel
