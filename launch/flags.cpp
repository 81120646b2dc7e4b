#include "launch/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>

#include "src/base/log.h"
#include "src/base/log_format.h"
#include "src/engine/graph_cache.h"
#include "src/engine/memory_plan.h"
#include "src/model/layout.h"

namespace llm_dist::launch {
namespace {

// In smaller steps each rank norms all rows itself, in the kernel that sums them up, which takes fewer trips
// between GPUs (comm/p2p/norm_sum.cu: of up to 256 rows).
constexpr int64_t kSequenceParallelTokens = 257;
// A block of more holds room that no sequence uses.
constexpr int64_t kMostBlockTokens = 65536;

bool holds_quantized(const checkpoint::Checkpoint& checkpoint) {
  const checkpoint::TensorInfo* tensor = checkpoint.find("model.layers.0.mlp.down_proj.weight");
  return tensor != nullptr && is_quantized(tensor->scheme);
}

// Quantized weights on CPU are multiplied in int8 and summed in float: float activations lose nothing on the
// way. A GPU holds such weights in the activations' type.
DType automatic_dtype(const checkpoint::Checkpoint& checkpoint, const RankResources& resources) {
  if (holds_quantized(checkpoint)) return resources.quantized_activations;
  if (!resources.bf16_arithmetic) return DType::kF32;
  return checkpoint.config().torch_dtype;
}

bool read_whole(std::string_view text, int& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

Result<parallel::Layout> parse_layout(const std::string& text) {
  const size_t cross = text.find_first_of("xX");
  if (cross != std::string::npos) {
    parallel::Layout layout;
    const bool whole = read_whole(std::string_view(text).substr(0, cross), layout.tp) &&
                       read_whole(std::string_view(text).substr(cross + 1), layout.pp);
    if (whole && layout.tp > 0 && layout.pp > 0) return layout;
  }
  return invalid_argument(format("--layout {} is neither auto nor TPxPP, for example 2x1", text));
}

}  // namespace

Status apply_log_flags(const EngineFlags& flags) {
  ASSIGN_OR_RETURN(LogLevel level, parse_log_level(flags.log_level));
  ASSIGN_OR_RETURN(LogFormat format, parse_log_format(flags.log_format));
  set_log_level(level);
  set_log_format(format);
  return ok_status();
}

Result<DType> parse_dtype(const std::string& flag, const std::string& name) {
  if (name == "float32" || name == "f32" || name == "float") return DType::kF32;
  if (name == "bfloat16" || name == "bf16") return DType::kBF16;
  if (name == "float16" || name == "fp16" || name == "half") return DType::kF16;
  return invalid_argument(format("{} {} is not one of bfloat16, float16, float32", flag, name));
}

namespace {

Result<DType> parse_kv_dtype(const std::string& name) {
  if (name == "fp8" || name == "fp8_e4m3") return DType::kF8E4M3;
  auto dtype = parse_dtype("--kv-cache-dtype", name);
  if (dtype.ok()) return dtype;
  return invalid_argument(
      format("--kv-cache-dtype {} is not one of auto, fp8, bfloat16, float16, float32", name));
}

void add_device_flag(CLI::App& app, ModelFlags& flags) {
  app.add_option("--device", flags.device, "auto, cpu, cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
}

void add_rank_flags(CLI::App& app, ParallelFlags& flags) {
  app.add_option("--threads", flags.threads, "CPU threads of each rank (0: from the binding)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--distributed-timeout-seconds",
                 flags.distributed_timeout_seconds,
                 "How long a collective may wait for a rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--disable-custom-all-reduce",
               flags.disable_custom_all_reduce,
               "Sums and gathers between GPUs of a host over NCCL, not over their peer memory");
  app.add_flag("--disable-custom-hand-off",
               flags.disable_custom_hand_off,
               "Hand-offs between stages on GPUs of a host over NCCL, not over their peer memory");
  app.add_flag("--disable-stream-waits",
               flags.disable_stream_waits,
               "Between stages on GPUs a kernel waits for each hand-off, not a stream");
}

void add_log_flag(CLI::App& app, EngineFlags& flags) {
  app.add_option("--log-level", flags.log_level, "debug, info, warning, error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  app.add_option("--log-format", flags.log_format, "text, or json: an object a line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

}  // namespace

void add_process_flags(CLI::App& app, EngineFlags& flags) {
  add_device_flag(app, flags.model);
  add_launch_flags(app, flags.launch);
  add_rank_flags(app, flags.parallel);
  add_log_flag(app, flags);
}

void add_model_flags(CLI::App& app, ModelFlags& flags) {
  app.add_option("model", flags.model, "Directory with config.json and *.safetensors, or a .gguf file")
      ->required()
      ->type_name("MODEL");
  app.add_option("--dtype", flags.dtype, "Arithmetic of activations: auto, bfloat16, float16, float32")
      ->capture_default_str();
  app.add_option("--load-format", flags.load_format, "auto, safetensors, gguf, dummy (made-up weights)")
      ->capture_default_str();
  app.add_option("--quantization",
                 flags.quantization,
                 "Weights of linear layers: auto (as the checkpoint has them) or fp8 (E4M3, a scale a row)")
      ->check(CLI::IsMember({"auto", "fp8"}))
      ->capture_default_str();
  app.add_option("--max-model-len",
                 flags.max_model_len,
                 "Tokens of prompt and output of one sequence (0: the model's)")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
      "--tokenizer", flags.tokenizer, "A directory with tokenizer.json, or a .gguf file (default: MODEL's)");
  app.add_option("--chat-template", flags.chat_template, "A file with a Jinja template (default: MODEL's)")
      ->check(CLI::ExistingFile);
  add_device_flag(app, flags);
}

void add_engine_flags(CLI::App& app, EngineFlags& flags) {
  add_model_flags(app, flags.model);
  app.add_option("--config",
                 flags.config_file,
                 "A TOML or INI file with flags, as in: max-model-len = 4096; the command line wins")
      ->multi_option_policy(
          CLI::MultiOptionPolicy::TakeLast)  // once more behind what it holds (config_file.cpp)
      ->check(CLI::ExistingFile)
      ->type_name("FILE");
  add_launch_flags(app, flags.launch);
  ParallelFlags& parallel = flags.parallel;
  auto* group = app.add_option_group("Parallelism");
  group
      ->add_option("--tp,--tp-size,--tensor-parallel-size",
                   parallel.tp,
                   "Ranks that share each layer (default: chosen)")
      ->check(CLI::PositiveNumber);
  group
      ->add_option("--pp,--pp-size,--pipeline-parallel-size",
                   parallel.pp,
                   "Stages of consecutive layers (default: chosen)")
      ->check(CLI::PositiveNumber);
  group->add_option("--layout", parallel.layout, "auto or TPxPP")->capture_default_str();
  group
      ->add_option("--pp-layer-split",
                   parallel.pp_layer_split,
                   "Layers of each stage, for example 14,16 (default: about as many each)")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  group
      ->add_option(
          "--sequence-parallel", parallel.sequence_parallel, "Norms on a share of the tokens: auto, on, off")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  add_rank_flags(*group, parallel);

  MemoryFlags& memory = flags.memory;
  group = app.add_option_group("Memory");
  group
      ->add_option(
          "--gpu-memory-utilization", memory.gpu_memory_utilization, "Share of the free memory to use")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  group
      ->add_option(
          "--kv-cache-memory-bytes", memory.kv_cache_memory_bytes, "KV cache of each rank (0: what is left)")
      ->check(CLI::NonNegativeNumber);
  group
      ->add_option(
          "--kv-cache-dtype", memory.kv_cache_dtype, "auto (as activations), fp8, bfloat16, float16, float32")
      ->capture_default_str();
  group->add_option("--block-size", memory.block_size, "Tokens of a KV block")
      ->check(CLI::Range(int64_t{1}, kMostBlockTokens))
      ->capture_default_str();

  SchedulerFlags& scheduler = flags.scheduler;
  group = app.add_option_group("Scheduler");
  group
      ->add_option("--max-num-seqs",
                   scheduler.max_num_seqs,
                   format("Sequences that run at once (0: {} for each stage)", kStageSequences))
      ->check(CLI::NonNegativeNumber);
  group
      ->add_option("--max-num-batched-tokens",
                   scheduler.max_num_batched_tokens,
                   format("Tokens of one step (0: {}, on GPUs for each rank of a tensor group)", kStepTokens))
      ->check(CLI::NonNegativeNumber);
  group->add_flag("--enable-chunked-prefill,!--no-enable-chunked-prefill",
                  scheduler.chunked_prefill,
                  "Long prompts run in pieces beside decodes");
  group->add_flag("--async-scheduling,!--no-async-scheduling",
                  scheduler.async_scheduling,
                  "Schedule a step while the one before it runs");
  group->add_option("--scheduling-policy", scheduler.policy, "fcfs or priority")
      ->check(CLI::IsMember({"fcfs", "priority"}))
      ->capture_default_str();
  group->add_flag("--enforce-eager", scheduler.enforce_eager, "Issue every step anew: no graphs");
  group->add_flag("--disable-custom-linear",
                  scheduler.disable_custom_linear,
                  "Matrix products on GPUs by cuBLASLt alone, not by kernels of our own");
  group->add_flag(
      "--disable-custom-attention",
      scheduler.disable_custom_attention,
      "Attention of prompts by the kernel that every GPU takes, not by the one for Hopper, and in "
      "steps of decodes alone without tensor cores");
  group->add_flag("--disable-custom-sampling",
                  scheduler.disable_custom_sampling,
                  "On Hopper GPUs a row of logits is sampled by one block, not by a team of them");
  group->add_flag("--disable-last-layer-pruning",
                  scheduler.disable_last_layer_pruning,
                  "The last layer works on all tokens of a prompt, not on the sampled ones alone");
  group->add_flag("--disable-persistent-kernels",
                  scheduler.disable_persistent_kernels,
                  "On GPUs every op of a single sequence's step in a kernel of its own");
  group->add_flag("--disable-pdl",
                  scheduler.disable_pdl,
                  "Kernels on GPUs start when those in front of them have ended: no programmatic dependent "
                  "launch");
  group->add_flag("--disable-autotune",
                  scheduler.disable_autotune,
                  "Kernels of matrix products on GPUs by a first guess, not by timing some at start");
  group->add_flag(
      "--deterministic",
      scheduler.deterministic,
      "A request's tokens and log-probabilities have the same bits whatever runs beside it (CPU)");
  group
      ->add_option("--cuda-graph-sizes",
                   scheduler.cuda_graph_sizes,
                   "Batch sizes whose decode steps are captured as graphs, for example 1,8,64")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  group->add_option("--max-num-queued-reqs", scheduler.max_num_queued_reqs, "Requests that may wait")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  group
      ->add_option("--max-num-queued-tokens",
                   scheduler.max_num_queued_tokens,
                   "Tokens of the prompts that wait; the first may be longer (0: no limit)")
      ->check(CLI::NonNegativeNumber);
  add_log_flag(app, flags);
  app.add_option("--trace-file",
                 flags.trace_file,
                 "At the end, print how busy each rank was, and write when it was and with which step, for "
                 "chrome://tracing");
  app.add_option("--profile",
                 flags.profile_file,
                 "At the end, print what steps spend their time on and write it, for chrome://tracing; steps "
                 "are issued op by op");
}

namespace {

std::vector<int64_t> graph_sizes(const SchedulerFlags& flags,
                                 const RankResources& resources,
                                 int64_t max_decodes) {
  if (flags.enforce_eager) return {};
  std::vector<int64_t> sizes = flags.cuda_graph_sizes;
  if (sizes.empty() && resources.prefers_graphs) sizes = engine::default_graph_sizes(max_decodes);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::erase_if(sizes, [&](int64_t size) { return size > max_decodes; });
  return sizes;
}

// Sets what a step has room for: EngineOptions::max_num_seqs and max_num_batched_tokens. What is asked for is
// kept, and what is not goes along with it.
Status resolve_step_room(const SchedulerFlags& flags,
                         const RankResources& resources,
                         engine::EngineOptions& options) {
  options.max_num_seqs = flags.max_num_seqs;
  options.max_num_batched_tokens = flags.max_num_batched_tokens;
  if (options.max_num_seqs == 0) {
    options.max_num_seqs = kStageSequences * options.num_micro_batches();
    if (options.max_num_batched_tokens > 0)
      options.max_num_seqs = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  }
  options.max_num_seqs = std::max(options.max_num_seqs, flags.least_num_seqs);
  if (options.max_num_batched_tokens > 0 && flags.least_num_seqs > 0)
    options.max_num_batched_tokens = std::max(options.max_num_batched_tokens, options.max_num_seqs);
  if (options.max_num_batched_tokens == 0) {
    const int64_t ranks = resources.own_device ? options.layout.tp : 1;
    options.max_num_batched_tokens = std::max(kStepTokens * ranks, options.max_num_seqs);
    if (!flags.chunked_prefill)
      options.max_num_batched_tokens = std::max(options.max_num_batched_tokens, options.max_model_len);
  }
  if (options.max_num_batched_tokens < options.max_num_seqs) {
    return invalid_argument(
        format("--max-num-batched-tokens {} is below --max-num-seqs {}: a step must have room for one "
               "token of each sequence",
               options.max_num_batched_tokens,
               options.max_num_seqs));
  }
  if (!flags.chunked_prefill && options.max_num_batched_tokens < options.max_model_len) {
    return invalid_argument(
        format("--max-num-batched-tokens {} is below --max-model-len {}: with --no-enable-chunked-prefill a "
               "step must have room for a whole prompt",
               options.max_num_batched_tokens,
               options.max_model_len));
  }
  return ok_status();
}

}  // namespace

Result<parallel::Layout> asked_layout(const ParallelFlags& flags) {
  parallel::Layout asked{.tp = flags.tp, .pp = flags.pp};
  if (flags.layout != "auto") {
    ASSIGN_OR_RETURN(asked, parse_layout(flags.layout));
    if ((flags.tp > 0 && flags.tp != asked.tp) || (flags.pp > 0 && flags.pp != asked.pp))
      return invalid_argument(format("--layout {} contradicts --tp or --pp: leave one out", flags.layout));
  }
  auto stages = static_cast<int>(flags.pp_layer_split.size());
  if (stages > 0 && asked.pp > 0 && asked.pp != stages) {
    return invalid_argument(format("--pp-layer-split names {} stages, but there are {}", stages, asked.pp));
  }
  if (stages > 0) asked.pp = stages;
  return asked;
}

namespace {

Status check_layer_split(const std::vector<int64_t>& split, int64_t num_layers) {
  int64_t sum = std::accumulate(split.begin(), split.end(), int64_t{0});
  if (split.empty() || sum == num_layers) return ok_status();
  return invalid_argument(
      format("--pp-layer-split adds up to {} layers, but the model has {}", sum, num_layers));
}

}  // namespace

Result<ResolvedOptions> resolve(const EngineFlags& flags,
                                const checkpoint::Checkpoint& checkpoint,
                                const RankResources& resources) {
  const checkpoint::ModelConfig& config = checkpoint.config();
  ResolvedOptions resolved;
  engine::EngineOptions& options = resolved.engine;

  if (!kernels::takes_head_dim(config.head_dim)) {
    return unimplemented(format("head_dim = {}: attention takes multiples of {} up to {}",
                                config.head_dim,
                                kernels::kHeadDimStep,
                                kernels::kMaxHeadDim));
  }
  RETURN_IF_ERROR(check_layer_split(flags.parallel.pp_layer_split, config.num_layers));
  ASSIGN_OR_RETURN(parallel::Layout asked, asked_layout(flags.parallel));
  ASSIGN_OR_RETURN(
      model::LayoutChoice choice,
      model::choose_layout(checkpoint, resources.world_size, resources.ranks_per_node, asked.tp, asked.pp));
  options.layout = choice.layout;
  options.layer_split = flags.parallel.pp_layer_split;
  options.layout.sequence_parallel = flags.parallel.sequence_parallel == "on";
  options.peer_memory = resources.peer_memory;
  options.peer_hand_off = resources.peer_hand_off;
  if (flags.parallel.sequence_parallel == "auto" && resources.peer_memory)
    options.layout.sequence_parallel_from = kSequenceParallelTokens;
  resolved.layout_reason = choice.reason;

  options.dtype = automatic_dtype(checkpoint, resources);
  if (flags.model.dtype != "auto") {
    ASSIGN_OR_RETURN(options.dtype, parse_dtype("--dtype", flags.model.dtype));
  }
  options.kv_dtype = options.dtype;
  if (flags.memory.kv_cache_dtype != "auto") {
    ASSIGN_OR_RETURN(options.kv_dtype, parse_kv_dtype(flags.memory.kv_cache_dtype));
  }
  if (flags.model.quantization == "fp8") options.quantization = WeightScheme::kF8E4M3;
  // Made-up weights are dense until they are loaded.
  if (checkpoint.load_format() == checkpoint::LoadFormat::kDummy && !options.quantization)
    options.quantization = config.quantization;
  options.max_model_len = config.max_position_embeddings;
  if (flags.model.max_model_len > 0) {
    if (flags.model.max_model_len > checkpoint::longest_context(config)) {
      return invalid_argument(format("--max-model-len {} exceeds the model's {} positions",
                                     flags.model.max_model_len,
                                     checkpoint::longest_context(config)));
    }
    if (flags.model.max_model_len < 2)
      return invalid_argument(
          "--max-model-len 1 has room for no token behind the prompt: it must be at least 2");
    options.max_model_len = flags.model.max_model_len;
  }
  options.block_size = flags.memory.block_size;
  options.enable_chunked_prefill = flags.scheduler.chunked_prefill;
  options.async_scheduling = flags.scheduler.async_scheduling;
  RETURN_IF_ERROR(resolve_step_room(flags.scheduler, resources, options));
  if (flags.scheduler.disable_custom_linear) options.linear_kernels = kernels::LinearKernels::kLibrary;
  if (flags.scheduler.disable_custom_attention)
    options.attention_kernels = kernels::AttentionKernels::kPortable;
  options.persistent_kernels = !flags.scheduler.disable_persistent_kernels;
  options.row_teams = !flags.scheduler.disable_custom_sampling;
  options.prune_last_layer = !flags.scheduler.disable_last_layer_pruning;
  options.autotune = !flags.scheduler.disable_autotune;
  options.deterministic = flags.scheduler.deterministic;
  options.priority_scheduling = flags.scheduler.policy == "priority";
  options.graph_sizes = graph_sizes(flags.scheduler, resources, options.max_decodes());
  options.threads = flags.parallel.threads > 0 ? flags.parallel.threads : resources.threads;
  options.load_threads = std::max(2, options.threads);
  options.step_deadline_seconds = flags.parallel.distributed_timeout_seconds;
  return resolved;
}

int64_t usable_memory(const EngineFlags& flags, int64_t free_bytes) {
  return static_cast<int64_t>(static_cast<double>(free_bytes) * flags.memory.gpu_memory_utilization);
}

namespace {

// What to change, by what took the memory.
std::string how_to_fit(const EngineFlags& flags, int64_t least, int64_t free_bytes) {
  std::string more, smaller;
  if (least <= free_bytes)
    more = format("It fits where --gpu-memory-utilization allows more than {}. ",
                  flags.memory.gpu_memory_utilization);
  if (flags.memory.kv_cache_memory_bytes > 0) smaller += "--kv-cache-memory-bytes, ";
  if (flags.scheduler.max_num_seqs > 0) smaller += "--max-num-seqs, ";
  return format(
      "{}More ranks (--tp, --pp) hold less each; smaller {}--max-model-len and --max-num-batched-tokens "
      "shrink the rest.",
      more,
      smaller);
}

}  // namespace

Status fit_memory(const EngineFlags& flags,
                  const checkpoint::Checkpoint& checkpoint,
                  const kernels::OpTable& ops,
                  const RankResources& resources,
                  int rank,
                  engine::EngineOptions& options) {
  ASSIGN_OR_RETURN(engine::MemoryPlan plan, engine::plan_memory(checkpoint, ops, options, rank));
  int64_t usable = usable_memory(flags, resources.memory_bytes);
  int64_t one_sequence = options.max_blocks_per_sequence() * plan.kv_block_bytes;
  int64_t wanted = flags.memory.kv_cache_memory_bytes;
  if (wanted > 0 && wanted < one_sequence) {
    return invalid_argument(
        format("--kv-cache-memory-bytes {} holds {} tokens, fewer than one sequence of --max-model-len {}, "
               "which takes {} "
               "bytes: lower the one or raise the other",
               wanted,
               wanted / plan.kv_block_bytes * options.block_size,
               options.max_model_len,
               one_sequence));
  }
  const int64_t cache = wanted > 0 ? wanted : one_sequence;
  const int64_t least =
      plan.fixed_bytes() + std::min(cache, std::numeric_limits<int64_t>::max() - plan.fixed_bytes());
  if (least > usable) {
    const bool never_fits = least > usable_memory(flags, resources.total_memory_bytes);
    return Status(
        never_fits ? StatusCode::kInvalidArgument : StatusCode::kResourceExhausted,
        format("{} does not fit: rank {} needs {} ({} without KV cache) and may use {} of {} free\n{}{}",
               checkpoint.path(),
               rank,
               engine::human_bytes(least),
               engine::human_bytes(plan.fixed_bytes()),
               engine::human_bytes(usable),
               engine::human_bytes(resources.memory_bytes),
               engine::describe({plan}, usable),
               how_to_fit(flags, least, resources.memory_bytes)));
  }
  // No more than what all sequences at their longest would hold.
  int64_t most = one_sequence * options.max_num_seqs;
  if (resources.default_kv_bytes > 0)
    most = std::min(most, std::max(resources.default_kv_bytes, one_sequence));
  options.kv_cache_bytes = wanted > 0 ? wanted : std::min(usable - plan.fixed_bytes(), most);
  return ok_status();
}

}  // namespace llm_dist::launch
