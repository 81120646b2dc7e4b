#include "tests/kernels/instructions.h"

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/highway_targets.h"

namespace llm_dist::kernels {
namespace {

Result<std::unique_ptr<OpState>> make_avx2_state(device::Backend& backend, const OpStateOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<CpuOpState> state,
                   CpuOpState::make(backend, options, {.level = CpuLevel::kAvx2}));
  return std::unique_ptr<OpState>(std::move(state));
}

}  // namespace

Instructions::Instructions(bool avx2_only) : avx2_only_(avx2_only) {
  use_highway_targets(avx2_only ? HWY_AVX2 : 0);
}
Instructions::~Instructions() { use_highway_targets(0); }

const OpTable& Instructions::ops() const {
  static const OpTable avx2 = [] {
    OpTable table = cpu_ops();
    table.make_state = make_avx2_state;
    return table;
  }();
  return avx2_only_ ? avx2 : cpu_ops();
}

}  // namespace llm_dist::kernels
