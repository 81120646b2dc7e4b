#include "src/model/registry.h"

#include <array>

namespace llm_dist::model {
namespace {
constexpr std::array kFamilies = {
    Family{"llama", make_llama},
};
}  // namespace

std::span<const Family> families() { return kFamilies; }

Result<const Family*> find_family(const std::string& architecture) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.architecture == architecture) return &family;
    known += (known.empty() ? "" : ", ") + std::string(family.architecture);
  }
  return unimplemented(format("the architecture '{}' is not among those served: {}", architecture, known));
}

}  // namespace llm_dist::model
