// Context: what every parallel layer is built with. Layers keep references; the runner owns what they refer
// to.
#pragma once

#include "comm/communicator.h"
#include "comm/norm_reducer.h"
#include "kernels/ops.h"
#include "parallel/arena.h"
#include "parallel/mesh.h"
#include "parallel/weight_map.h"

namespace llm_dist::parallel {

struct Context {
  Mesh mesh;
  DType dtype = DType::kF32;  // of activations
  Arena* arena = nullptr;
  WeightMap* weights = nullptr;
  // Absent while only a plan is made.
  const kernels::Ops* ops = nullptr;
  comm::Communicator* tensor_group = nullptr;
  comm::NormReducer* norm_reducer = nullptr;  // of the tensor group; null: it is none
};

}  // namespace llm_dist::parallel
