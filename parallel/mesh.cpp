#include "parallel/mesh.h"

namespace llm_dist::parallel {

std::string to_string(const Layout& layout) {
  std::string text = "TP " + std::to_string(layout.tp) + " × PP " + std::to_string(layout.pp);
  if (layout.tp == 1) return text;
  if (layout.sequence_parallel) return text + ", sequence parallel";
  if (layout.sequence_parallel_from == Layout::kNever) return text;
  return text + ", sequence parallel from " + std::to_string(layout.sequence_parallel_from) + " tokens on";
}

}  // namespace llm_dist::parallel
