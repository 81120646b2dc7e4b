// Which layouts a model can run in, and which one to take when none is asked for.
#pragma once

#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "src/checkpoint/checkpoint.h"

namespace llm_dist::model {

// Where the MLP's inner features may be cut: the block of its down projection's scheme.
int64_t intermediate_granule(const checkpoint::Checkpoint& checkpoint);

// ok, or invalid_argument that says why the layout is impossible and which ones of the same world fit.
Status check_layout(const checkpoint::Checkpoint& checkpoint, const parallel::Layout& layout);

// Every layout of `world_size` ranks that the model can run in, largest tp first.
std::vector<parallel::Layout> layouts_that_fit(const checkpoint::Checkpoint& checkpoint, int world_size);

struct LayoutChoice {
  parallel::Layout layout;
  std::string reason;  // for the log
};

// Tensor groups stay inside a node: the largest fitting tp that divides ranks_per_node and shares the heads
// most evenly, stages over the rest. tp or pp, when positive, are kept, wherever the nodes end.
// ranks_per_node: what divides every node's ranks.
Result<LayoutChoice> choose_layout(
    const checkpoint::Checkpoint& checkpoint, int world_size, int ranks_per_node, int tp, int pp);

}  // namespace llm_dist::model
