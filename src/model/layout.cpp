#include "src/model/layout.h"

#include <algorithm>

#include "parallel/partition.h"

namespace llm_dist::model {
namespace {

using checkpoint::Checkpoint;
using parallel::Layout;

int64_t block_of(const Checkpoint& checkpoint, const std::string& tensor) {
  const checkpoint::TensorInfo* info = checkpoint.find(tensor);
  return info == nullptr ? 1 : scheme_traits(info->scheme).block_values;
}

// Empty when the layout fits.
std::string misfit(const Checkpoint& checkpoint, const Layout& layout) {
  const checkpoint::ModelConfig& config = checkpoint.config();
  if (layout.tp < 1 || layout.pp < 1) return "tp and pp must be at least 1";
  if (layout.pp > config.num_layers)
    return format("pp {} exceeds the model's {} layers", layout.pp, config.num_layers);
  if (layout.tp > config.num_heads)
    return format("tp {} exceeds the model's {} heads", layout.tp, config.num_heads);
  int64_t granule = intermediate_granule(checkpoint);
  if (config.intermediate_size / granule < layout.tp) {
    return format("tp {} exceeds the {} blocks of the MLP's inner features",
                  layout.tp,
                  config.intermediate_size / granule);
  }
  int64_t block = block_of(checkpoint, "model.layers.0.self_attn.o_proj.weight");
  for (int rank = 0; rank < layout.tp; ++rank) {
    parallel::HeadShard heads = parallel::shard_heads(config.num_heads, config.num_kv_heads, layout.tp, rank);
    if (heads.q.count == 0) return format("tp {} leaves a rank without a head", layout.tp);
    if (heads.q.begin * config.head_dim % block != 0 || heads.q.count * config.head_dim % block != 0) {
      return format("tp {} cuts a block of {} quantized values at head {}", layout.tp, block, heads.q.begin);
    }
  }
  return "";
}

std::string short_name(const Layout& layout) {
  return std::to_string(layout.tp) + "x" + std::to_string(layout.pp);
}

// "4x2, 2x4"
std::string short_names(const std::vector<Layout>& layouts) {
  std::string names;
  for (const Layout& layout : layouts) names += (names.empty() ? "" : ", ") + short_name(layout);
  return names.empty() ? "none; start another number of ranks" : names;
}

// Heads of the busiest rank against the mean: 1 is even.
double imbalance(const checkpoint::ModelConfig& config, int tp) {
  int64_t most = 0;
  for (int rank = 0; rank < tp; ++rank) {
    most = std::max(most, parallel::shard_heads(config.num_heads, config.num_kv_heads, tp, rank).q.count);
  }
  return static_cast<double>(most) * tp / static_cast<double>(config.num_heads);
}

}  // namespace

int64_t intermediate_granule(const Checkpoint& checkpoint) {
  return block_of(checkpoint, "model.layers.0.mlp.down_proj.weight");
}

std::vector<Layout> layouts_that_fit(const Checkpoint& checkpoint, int world_size) {
  std::vector<Layout> fitting;
  for (int tp = world_size; tp >= 1; --tp) {
    if (world_size % tp != 0) continue;
    Layout layout{.tp = tp, .pp = world_size / tp};
    if (misfit(checkpoint, layout).empty()) fitting.push_back(layout);
  }
  return fitting;
}

Status check_layout(const Checkpoint& checkpoint, const Layout& layout) {
  std::string why = misfit(checkpoint, layout);
  if (why.empty()) return ok_status();
  return invalid_argument(format("layout TP×PP {} is impossible: {}. {} ranks fit as: {}",
                                 short_name(layout),
                                 why,
                                 layout.world_size(),
                                 short_names(layouts_that_fit(checkpoint, layout.world_size()))));
}

Result<LayoutChoice> choose_layout(
    const Checkpoint& checkpoint, int world_size, int ranks_per_node, int tp, int pp) {
  if (tp > 0 || pp > 0) {
    Layout asked{.tp = tp > 0 ? tp : std::max(1, world_size / std::max(1, pp)),
                 .pp = pp > 0 ? pp : std::max(1, world_size / std::max(1, tp))};
    if (asked.world_size() != world_size) {
      return invalid_argument(
          format("tp {} × pp {} is {} ranks, but {} {} started: mpirun -np {}, srun -n{} or --nproc-per-node",
                 asked.tp,
                 asked.pp,
                 asked.world_size(),
                 world_size,
                 world_size == 1 ? "was" : "were",
                 asked.world_size(),
                 asked.world_size()));
    }
    RETURN_IF_ERROR(check_layout(checkpoint, asked));
    return LayoutChoice{asked, "as asked"};
  }
  const std::vector<Layout> possible = layouts_that_fit(checkpoint, world_size);
  if (possible.empty()) return check_layout(checkpoint, {.tp = world_size, .pp = 1});
  std::vector<Layout> fitting = possible;
  std::erase_if(fitting, [&](const Layout& layout) { return ranks_per_node % layout.tp != 0; });
  if (fitting.empty()) {
    return invalid_argument(
        format("{} ranks fit as no layout whose tensor groups stay inside a node, with a tp that divides {}: "
               "the model has {} layers and {} heads. With groups that span nodes they fit as: {} (--layout)",
               world_size,
               ranks_per_node,
               checkpoint.config().num_layers,
               checkpoint.config().num_heads,
               short_names(possible)));
  }
  // A pipeline only helps throughput: prefer the widest group unless it leaves ranks half idle.
  constexpr double kTolerableImbalance = 1.5;
  Layout best = fitting.front();
  for (const Layout& layout : fitting) {
    if (imbalance(checkpoint.config(), layout.tp) <= kTolerableImbalance) {
      best = layout;
      break;
    }
  }
  std::string reason = best.pp == 1
                           ? format("all {} ranks share every layer", world_size)
                           : format("tensor groups of {} inside a node, {} stages", best.tp, best.pp);
  return LayoutChoice{best, reason};
}

}  // namespace llm_dist::model
