// Loader: a rank's WeightMap filled from a checkpoint. Each rank reads its own slices only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/op_table.h"
#include "parallel/weight_map.h"
#include "src/checkpoint/checkpoint.h"
#include "src/device/backend.h"

namespace llm_dist::model {

// What a rank's weights are to be in memory.
struct HeldWeights {
  DType activation_dtype = DType::kF32;
  // Of linear layers, whatever the checkpoint has; none: as it has them, where the kernels take that.
  std::optional<WeightScheme> linear;
};

// What loading will do, from headers alone.
struct LoadPlan {
  struct Matrix {
    const parallel::MatrixSlot* slot = nullptr;
    WeightScheme scheme = WeightScheme::kF32;  // as held in memory
    int64_t offset = 0;                        // in the weights' buffer
    int64_t scales_offset = 0;                 // there, of a scheme that has_row_scales
  };
  std::vector<Matrix> matrices;         // as WeightMap::matrices
  std::vector<int64_t> vector_offsets;  // as WeightMap::vectors
  std::vector<int64_t> table_offsets;   // as WeightMap::tables
  int64_t weight_bytes = 0;             // of the checkpoint's tensors, as held
  int64_t bytes = 0;                    // of the whole buffer: tables and alignment too
};

// A tensor that the map names and the checkpoint lacks, or that a layout cuts inside a block, is an error
// that names it, and so are weights that the kernels do not take in the scheme that `held` asks for.
Result<LoadPlan> plan_load(const parallel::WeightMap& map,
                           const checkpoint::Checkpoint& checkpoint,
                           const kernels::OpTable& ops,
                           const HeldWeights& held);

struct LoadedWeights {
  device::Buffer buffer;
  checkpoint::ReadStats stats;
};

// Reads, converts where LoadPlan says so, and sets every slot's target to its place in the buffer. data_loss
// naming tensor and row where a value that is to be quantized is not finite. What a row is scaled by depends
// on the whole of it, so that every layout of ranks has the same weights.
Result<LoadedWeights> load_weights(const parallel::WeightMap& map,
                                   const LoadPlan& plan,
                                   const checkpoint::Checkpoint& checkpoint,
                                   DType activation_dtype,
                                   device::Backend& backend,
                                   device::Stream& stream,
                                   const checkpoint::ReadOptions& options);

}  // namespace llm_dist::model
