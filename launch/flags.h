// The flags of the commands that run a model, and how they become options. One struct a group, so that each
// command takes what it needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/node_launcher.h"
#include "src/base/status.h"
#include "src/checkpoint/checkpoint.h"
#include "src/engine/engine_options.h"

namespace CLI {
class App;
}

namespace llm_dist::launch {

struct ModelFlags {
  std::string model;
  std::string dtype = "auto";
  std::string load_format = "auto";
  std::string quantization = "auto";
  int64_t max_model_len = 0;
  std::string device = "auto";
  std::string tokenizer;      // directory with another tokenizer.json, or empty
  std::string chat_template;  // file with another template, or empty
};

struct ParallelFlags {
  int tp = 0;
  int pp = 0;
  std::string layout = "auto";
  std::vector<int64_t> pp_layer_split;  // empty: about as many layers a stage
  std::string sequence_parallel = "auto";
  int threads = 0;
  double distributed_timeout_seconds = 600;
  bool disable_custom_all_reduce = false;
  bool disable_custom_hand_off = false;
  bool disable_stream_waits = false;
};

struct MemoryFlags {
  double gpu_memory_utilization = 0.90;
  int64_t kv_cache_memory_bytes = 0;
  std::string kv_cache_dtype = "auto";
  int64_t block_size = 16;
};

// Tokens of a step. Where ranks have devices of their own, for each rank of a tensor group, so that a step
// takes about as long on any number of them.
inline constexpr int64_t kStepTokens = 2048;
// Sequences that run at once, for each stage: a step decodes one stage's share of them.
inline constexpr int64_t kStageSequences = 64;

struct SchedulerFlags {
  int64_t max_num_seqs = 0;            // 0: by kStageSequences
  int64_t max_num_batched_tokens = 0;  // 0: by kStepTokens
  int64_t least_num_seqs = 0;          // no flag: both rise to what a benchmark's batches need
  bool chunked_prefill = true;
  bool async_scheduling = true;
  std::string policy = "fcfs";
  int64_t max_num_queued_reqs = 1024;
  int64_t max_num_queued_tokens = 0;
  bool enforce_eager = false;
  bool disable_custom_linear = false;
  bool disable_custom_attention = false;
  bool disable_persistent_kernels = false;
  bool disable_custom_sampling = false;
  bool disable_last_layer_pruning = false;
  bool disable_pdl = false;
  bool disable_autotune = false;
  bool deterministic = false;
  std::vector<int64_t> cuda_graph_sizes;  // empty: the device's habit
};

struct EngineFlags {
  std::string config_file;  // read before the flags are, by with_config_file
  LaunchFlags launch;
  ModelFlags model;
  ParallelFlags parallel;
  MemoryFlags memory;
  SchedulerFlags scheduler;
  std::string log_level = "info";
  std::string log_format = "text";
  std::string trace_file;
  std::string profile_file;
  std::string result_file;  // of a benchmark
};

void add_model_flags(CLI::App& app, ModelFlags& flags);
void add_engine_flags(CLI::App& app, EngineFlags& flags);  // all groups
// What a rank needs to know without a model: device, threads, timeout, log level. Among add_engine_flags'.
void add_process_flags(CLI::App& app, EngineFlags& flags);

// --log-level and --log-format, from here on.
Status apply_log_flags(const EngineFlags& flags);

// The element type that users call `name`; `flag` is for the error.
Result<DType> parse_dtype(const std::string& flag, const std::string& name);

// What a rank can offer, for numbers that flags leave open.
struct RankResources {
  int world_size = 1;
  int ranks_per_node = 1;
  int threads = 1;
  bool own_device = false;                    // that no other rank computes on, as CPUs of a host are
  bool bf16_arithmetic = true;                // the device multiplies bf16
  DType quantized_activations = DType::kF32;  // beside quantized weights
  bool prefers_graphs = false;                // decode steps replayed as graphs unless told otherwise
  bool peer_memory = false;                   // EngineOptions::peer_memory
  bool peer_hand_off = false;                 // EngineOptions::peer_hand_off
  int64_t memory_bytes = 0;                   // free for this rank
  int64_t total_memory_bytes = 0;             // free for this rank if nothing else were there
  int64_t default_kv_bytes = 0;  // the KV cache takes no more unless asked to; 0: all that is left
};

struct ResolvedOptions {
  engine::EngineOptions engine;
  std::string layout_reason;
};

// The degrees that the flags name; 0: not named.
Result<parallel::Layout> asked_layout(const ParallelFlags& flags);

// Everything but the size of the KV cache, which depends on a memory plan: see fit_memory.
Result<ResolvedOptions> resolve(const EngineFlags& flags,
                                const checkpoint::Checkpoint& checkpoint,
                                const RankResources& resources);

// The share of a rank's memory that the flags let it use.
int64_t usable_memory(const EngineFlags& flags, int64_t free_bytes);

// Sets kv_cache_bytes of `options` from the rank's memory, or says, with the plan, that the model does not
// fit: resource_exhausted where it would if the memory were free, else invalid_argument.
Status fit_memory(const EngineFlags& flags,
                  const checkpoint::Checkpoint& checkpoint,
                  const kernels::OpTable& ops,
                  const RankResources& resources,
                  int rank,
                  engine::EngineOptions& options);

}  // namespace llm_dist::launch
