#include "parallel/arena.h"

#include <algorithm>

namespace llm_dist::parallel {
namespace {
constexpr int64_t kAlignment = 256;
int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
}  // namespace

Arena::Id Arena::declare(const std::string& name, RowKind kind, int64_t features, DType dtype) {
  CHECK(buffer_.bytes() == 0, "{} declared after the arena was allocated", name);
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.name != name) continue;
    CHECK(entry.kind == kind && entry.dtype == dtype, "two meanings of the activation '{}'", name);
    entry.features = std::max(entry.features, features);
    return static_cast<Id>(i);
  }
  entries_.push_back({name, kind, features, dtype});
  return static_cast<Id>(entries_.size() - 1);
}

int64_t Arena::entry_bytes(const Entry& entry) const {
  int64_t rows = entry.kind == RowKind::kTokens        ? max_rows_.tokens
                 : entry.kind == RowKind::kLocalTokens ? max_rows_.local_tokens
                                                       : max_rows_.samples;
  return aligned(rows * entry.features * dtype_bytes(entry.dtype));
}

int64_t Arena::bytes() const {
  int64_t total = 0;
  for (const Entry& entry : entries_) total += entry_bytes(entry);
  return total;
}

Status Arena::allocate(device::Backend& backend) {
  int64_t offset = 0;
  for (Entry& entry : entries_) {
    entry.offset = offset;
    offset += entry_bytes(entry);
  }
  ASSIGN_OR_RETURN(buffer_, backend.allocate(offset, device::MemoryKind::kDevice));
  return ok_status();
}

Tensor Arena::get(Id id, int64_t rows, int64_t features) const {
  const Entry& entry = entries_[static_cast<size_t>(id)];
  CHECK(rows * features * dtype_bytes(entry.dtype) <= entry_bytes(entry),
        "[{}, {}] of the activation '{}', planned for {} bytes",
        rows,
        features,
        entry.name,
        entry_bytes(entry));
  return buffer_.view(entry.dtype, {rows, features}, entry.offset);
}

}  // namespace llm_dist::parallel
