// OpObserver: told of every op and collective as it is issued to a rank's compute stream. Profiles and
// the benchmark of single kernels are observers.
#pragma once

#include <cstdint>
#include <variant>

#include "kernels/op_table.h"

namespace llm_dist::kernels {

enum class CallKind : uint8_t {
  kOp,
  kCollective,
  kCopy,
  kWait,  // for another stage, until its activations are here
};

// An op's parameters; monostate where the call is no op.
using OpParams = std::variant<std::monostate,
                              const EmbeddingParams*,
                              const RmsNormParams*,
                              const AddRmsNormParams*,
                              const AddParams*,
                              const LinearParams*,
                              const LinearSharesParams*,
                              const LinearSiluAndMulParams*,
                              const SiluAndMulParams*,
                              const RopeAppendParams*,
                              const AttentionPlanParams*,
                              const AttentionParams*,
                              const GatherTokensParams*,
                              const ScatterTokensParams*,
                              const GatherRowsParams*,
                              const SampleParams*,
                              const ArgmaxShardParams*,
                              const ArgmaxMergeParams*>;

struct OpCall {
  const char* name;  // static
  int64_t rows = 0;  // the leading extent of what it works on
  CallKind kind = CallKind::kOp;
  OpParams params;  // valid during before() and after()
};

// Of a linear layer; null where the op is none.
inline const Weight* linear_weight(const OpParams& params) {
  if (const auto* linear = std::get_if<const LinearParams*>(&params)) return &(*linear)->weight;
  if (const auto* shares = std::get_if<const LinearSharesParams*>(&params)) return &(*shares)->weight;
  if (const auto* gated = std::get_if<const LinearSiluAndMulParams*>(&params)) return &(*gated)->weight;
  return nullptr;
}

class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void before(const OpCall& call, device::Stream& stream) = 0;
  virtual void after(const OpCall& call, device::Stream& stream) = 0;
};

}  // namespace llm_dist::kernels
