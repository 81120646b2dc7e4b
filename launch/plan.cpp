// `llm-dist plan`: what each rank of a layout would hold, from headers alone, on any machine.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_module.h"
#include "launch/byte_size.h"
#include "launch/commands.h"
#include "launch/flags.h"
#include "src/engine/memory_plan.h"
#include "src/model/layout.h"

namespace llm_dist::launch {
namespace {

constexpr int kDoesNotFitExitCode = 3;

struct PlanFlags {
  EngineFlags engine;
  int gpus = 0;
  std::string memory;
  bool json = false;
};

void print_json(const std::vector<engine::MemoryPlan>& plans,
                const engine::EngineOptions& options,
                int64_t usable) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const engine::MemoryPlan& plan : plans) {
    nlohmann::json rank = {{"rank", plan.rank},
                           {"first_layer", plan.layers.begin},
                           {"num_layers", plan.layers.count},
                           {"weight_bytes", plan.weight_bytes},
                           {"activation_bytes", plan.activation_bytes},
                           {"fixed_bytes", plan.fixed_bytes()},
                           {"kv_bytes_per_token", plan.kv_bytes_per_token()},
                           {"block_size", plan.block_size}};
    if (usable > 0) rank["kv_blocks"] = plan.blocks_in(usable);
    ranks.push_back(rank);
  }
  nlohmann::json out = {{"tp", options.layout.tp},
                        {"pp", options.layout.pp},
                        {"quantization", options.quantization ? nlohmann::json("fp8") : nlohmann::json()},
                        {"max_model_len", options.max_model_len},
                        {"ranks", ranks}};
  std::printf("%s\n", out.dump(2).c_str());
}

// Whether `serve` with the same flags would start in this memory: a sequence of --max-model-len must fit.
Result<bool> plan(const PlanFlags& flags) {
  ASSIGN_OR_RETURN(checkpoint::LoadFormat load_format,
                   checkpoint::parse_load_format(flags.engine.model.load_format));
  ASSIGN_OR_RETURN(
      auto checkpoint,
      checkpoint::Checkpoint::open(flags.engine.model.model, load_format, {.load_tokenizer = false}));
  int64_t memory = 0;
  if (!flags.memory.empty()) {
    ASSIGN_OR_RETURN(memory, parse_bytes("--memory", flags.memory));
  }
  ASSIGN_OR_RETURN(parallel::Layout asked, asked_layout(flags.engine.parallel));
  const bool on_gpus = flags.engine.model.device == "cuda";
  int world = flags.gpus > 0 ? flags.gpus : std::max(1, asked.tp) * std::max(1, asked.pp);
  ASSIGN_OR_RETURN(ResolvedOptions resolved,
                   resolve(flags.engine,
                           *checkpoint,
                           {.world_size = world,
                            .ranks_per_node = world,
                            .own_device = on_gpus,
                            .quantized_activations = on_gpus ? DType::kBF16 : DType::kF32,
                            .prefers_graphs = on_gpus,
                            .peer_memory = on_gpus && !flags.engine.parallel.disable_custom_all_reduce,
                            .peer_hand_off = on_gpus && !flags.engine.parallel.disable_custom_hand_off,
                            .memory_bytes = memory}));
  const engine::EngineOptions& options = resolved.engine;

  kernels::OpTable ops = kernels::cpu_ops();
  if (on_gpus) ops.takes_weight = kernels::takes_weight_cuda;
  std::vector<engine::MemoryPlan> plans;
  for (int rank = 0; rank < options.layout.world_size(); ++rank) {
    ASSIGN_OR_RETURN(engine::MemoryPlan rank_plan, engine::plan_memory(*checkpoint, ops, options, rank));
    plans.push_back(rank_plan);
  }
  const int64_t usable = usable_memory(flags.engine, memory);
  int64_t blocks = std::numeric_limits<int64_t>::max();
  for (const engine::MemoryPlan& rank_plan : plans) blocks = std::min(blocks, rank_plan.blocks_in(usable));
  // As fit_memory() has it: a cache of a size that was asked for is that large or not there.
  const int64_t wanted = flags.engine.memory.kv_cache_memory_bytes;
  bool fits = memory == 0 || blocks >= options.max_blocks_per_sequence();
  for (const engine::MemoryPlan& rank_plan : plans) {
    if (wanted > 0 && memory > 0)
      fits = fits && wanted >= options.max_blocks_per_sequence() * rank_plan.kv_block_bytes &&
             wanted <= usable - rank_plan.fixed_bytes();
  }
  if (flags.json) {
    print_json(plans, options, usable);
    return fits;
  }
  if (options.quantization)
    std::printf("linear layers in %s, embedding, head and norms in %s\n",
                std::string(to_string(*options.quantization)).c_str(),
                std::string(to_string(options.dtype)).c_str());
  std::printf("%s as %s (%s), %s activations, %s KV cache, up to %lld tokens a sequence\n\n%s",
              checkpoint->path().c_str(),
              to_string(options.layout).c_str(),
              resolved.layout_reason.c_str(),
              std::string(to_string(options.dtype)).c_str(),
              std::string(to_string(options.kv_dtype)).c_str(),
              static_cast<long long>(options.max_model_len),
              engine::describe(plans, usable).c_str());
  if (memory > 0) {
    int64_t context =
        std::min(blocks * options.block_size, checkpoint::longest_context(checkpoint->config()));
    std::string shortage;
    if (blocks == 0) {
      shortage = "; the model does not fit in this memory";
    } else if (!fits && blocks >= options.max_blocks_per_sequence()) {
      shortage = "; --kv-cache-memory-bytes does not fit, or is less than a sequence takes";
    } else if (!fits) {
      shortage = format("; --max-model-len {} does not fit in this memory", options.max_model_len);
    }
    std::printf(
        "\n%s of %s may be used (--gpu-memory-utilization): %lld KV blocks on every rank, the largest "
        "context is %lld tokens%s\n",
        engine::human_bytes(usable).c_str(),
        engine::human_bytes(memory).c_str(),
        static_cast<long long>(blocks),
        static_cast<long long>(context),
        shortage.c_str());
  }
  return fits;
}

}  // namespace

RunCommand add_plan(CLI::App& program) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* app = program.add_subcommand("plan", "Print what each rank would hold; reads headers only");
  add_engine_flags(*app, flags->engine);
  app->add_option("--gpus", flags->gpus, "Ranks to plan for, when --tp and --pp leave it open")
      ->check(CLI::PositiveNumber);
  app->add_option("--memory", flags->memory, "Memory of each rank's device, for example 80GiB");
  app->add_flag("--json", flags->json, "The plan as JSON");
  app->footer(
      "Exit codes: 0 it fits, or no --memory is given, 1 errors, 3 it does not fit: a sequence of\n"
      "--max-model-len must have room beside the weights. --device cuda counts what GPUs hold for each "
      "other.\n"
      "Examples:\n"
      "  llm-dist plan model.gguf --tp 2 --memory 8GiB\n"
      "  llm-dist plan path/to/Llama-3.3-70B --load-format dummy --gpus 8 --memory 141GB");
  return [flags] {
    Result<bool> fits = plan(*flags);
    if (fits.ok()) return *fits ? 0 : kDoesNotFitExitCode;
    std::fprintf(stderr, "llm-dist: %s\n", fits.status().message().c_str());
    return 1;
  };
}

}  // namespace llm_dist::launch
