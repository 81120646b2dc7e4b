// What an op has to move and multiply at least, from its parameters.
#pragma once

#include "kernels/op_observer.h"

namespace llm_dist::launch {

struct OpCost {
  double bytes = 0;  // every operand once, in the size it is held in; of caches and tables what is looked up
  double flops = 0;  // of matrix products and attention; 0: the op only moves
  bool f8_weight = false;  // of a product
};

// Attention is told its lengths by the plan made before it.
class OpCosts {
 public:
  OpCost of(const kernels::OpParams& params);

 private:
  double context_tokens_ = 0;  // Σ of the sequences' contexts
  double visible_ = 0;         // Σ of the keys that each query sees
};

}  // namespace llm_dist::launch
