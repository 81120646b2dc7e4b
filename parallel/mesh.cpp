#include "parallel/mesh.h"

namespace llm_dist::parallel {

std::string to_string(const Layout& layout) {
  std::string text = "TP " + std::to_string(layout.tp) + " × PP " + std::to_string(layout.pp);
  return layout.sequence_parallel && layout.tp > 1 ? text + ", sequence parallel" : text;
}

}  // namespace llm_dist::parallel
