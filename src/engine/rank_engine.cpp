#include "src/engine/rank_engine.h"

#include <algorithm>

#include "comm/agreement.h"
#include "comm/collective_times.h"
#include "comm/p2p/peer_group.h"
#include "parallel/linear.h"
#include "src/base/log.h"
#include "src/model/layout.h"
#include "src/model/registry.h"

namespace llm_dist::engine {
namespace {

constexpr double kAgreeDeadlineSeconds = 600;
constexpr double kLeaveSeconds = 10;

int64_t handoff_bytes(int64_t hidden_size, const EngineOptions& options) {
  return arena_rows(options).local_tokens * hidden_size * dtype_bytes(options.dtype);
}
int64_t token_bytes(const EngineOptions& options) {
  return options.padded_samples() * static_cast<int64_t>(sizeof(kernels::SampleRecord));
}
int lane_depth(const EngineOptions& options) { return options.max_steps_in_flight() + 1; }

}  // namespace

Result<ModelParts> build_model(const checkpoint::Checkpoint& checkpoint,
                               const EngineOptions& options,
                               const parallel::Context& context) {
  const checkpoint::ModelConfig& config = checkpoint.config();
  RETURN_IF_ERROR(model::check_layout(checkpoint, options.layout));
  ASSIGN_OR_RETURN(const model::Family* family, model::find_family(config.architecture));
  ModelParts parts;
  parts.layers =
      parallel::stage_layers(config.num_layers, context.mesh.pp(), context.mesh.stage(), options.layer_split);
  parts.model = family->make(context,
                             {.config = config,
                              .max_model_len = options.max_model_len,
                              .layers = parts.layers,
                              .intermediate_granule = model::intermediate_granule(checkpoint),
                              .prune_last_layer = options.prune_last_layer});
  if (context.mesh.last_stage()) parts.sampler = std::make_unique<Sampler>(context, config.vocab_size);
  return parts;
}

KvSpec kv_spec_of(const model::Model& model, const EngineOptions& options) {
  KvSpec spec = model.kv_spec();
  spec.block_size = options.block_size;
  spec.dtype = options.kv_dtype;
  return spec;
}

parallel::ArenaRows arena_rows(const EngineOptions& options) {
  int64_t tokens = options.padded_tokens();
  bool local = options.layout.sequence_parallel && options.layout.tp > 1;
  return {.tokens = tokens,
          .local_tokens = local ? tokens / options.layout.tp : tokens,
          .samples = options.padded_samples()};
}

model::HeldWeights held_weights(const EngineOptions& options) {
  return {.activation_dtype = options.dtype, .linear = options.quantization};
}

kernels::OpStateOptions op_state_options(const checkpoint::ModelConfig& config,
                                         const EngineOptions& options) {
  return {
      .threads = options.threads,
      .activation_dtype = options.dtype,
      .max_tokens = options.padded_tokens(),
      .max_features =
          std::max({config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim}),
      .max_sequences = options.padded_samples(),
      .vocab_size = parallel::shard_vocab(config.vocab_size, options.layout.tp, 0).padded * options.layout.tp,
      .linear = options.linear_kernels,
      .attention = options.attention_kernels,
      .persistent_kernels = options.persistent_kernels,
      .row_teams = options.row_teams,
      .autotune = options.autotune,
      .f8_weights = options.quantization.value_or(config.quantization.value_or(WeightScheme::kF32)) ==
                    WeightScheme::kF8E4M3,
      .batch_invariant = options.deterministic};
}

// One on either side: from the last stage tokens go to the first.
int num_lanes(const parallel::Mesh& mesh) { return mesh.pp() == 1 ? 0 : 2; }

// At most: sends that are issued with the step have no buffers (parallel::SendOrder).
int64_t lane_bytes(const parallel::Mesh& mesh, int64_t hidden_size, const EngineOptions& options) {
  int64_t bytes = 0;
  if (!mesh.first_stage()) bytes += handoff_bytes(hidden_size, options);
  if (!mesh.last_stage()) bytes += handoff_bytes(hidden_size, options);
  if (mesh.pp() > 1 && (mesh.first_stage() || mesh.last_stage())) bytes += token_bytes(options);
  return bytes * lane_depth(options);
}

int64_t shared_step_bytes(int64_t hidden_size, const EngineOptions& options) {
  const int64_t rows = options.padded_tokens();
  if (!options.layout.is_sequence_parallel(rows) || dtype_bytes(options.dtype) != 2) return 0;
  const int64_t bytes = rows * hidden_size * dtype_bytes(options.dtype);
  // Steps that are too large end it for all, unless it is asked for in all.
  return options.layout.sequence_parallel || bytes <= comm::kMostSharedBytes ? bytes : 0;
}

RankEngine::RankEngine(const RankEngineParts& parts, const EngineOptions& options)
    : parts_(parts),
      options_(options),
      mesh_(options.layout, parts.world->rank_info().rank),
      arena_(arena_rows(options)) {}

// Streams refer to each other's events and to everything that this rank owns: all are idle before anything
// goes.
RankEngine::~RankEngine() {
  if (Status status = finish(); !status.ok()) log_warning("leaving: {}", status.to_string());
}

Status RankEngine::finish() {
  if (runner_ == nullptr) return ok_status();
  if (runner_->drain(Deadline::after_seconds(kLeaveSeconds)).ok()) return ok_status();
  abort(aborted("a rank has ended"));
  Status status = runner_->drain(Deadline::after_seconds(kLeaveSeconds));
  return status.code() == StatusCode::kDeadlineExceeded ? status : ok_status();
}

Result<std::unique_ptr<RankEngine>> RankEngine::create(const RankEngineParts& parts,
                                                       const EngineOptions& options) {
  std::unique_ptr<RankEngine> engine(new RankEngine(parts, options));
  RETURN_IF_ERROR(engine->build());
  return engine;
}

Status RankEngine::build() {
  const checkpoint::ModelConfig& config = parts_.checkpoint->config();
  if (parts_.hooks.on_phase) parts_.hooks.on_phase("loading");
  ASSIGN_OR_RETURN(plan_, plan_memory(*parts_.checkpoint, *parts_.ops, options_, mesh_.rank()));
  RETURN_IF_ERROR(agree_on_blocks());

  compute_ = parts_.backend->make_stream("compute");
  RETURN_IF_ERROR(make_communicators());
  auto* norm_reducer = dynamic_cast<comm::NormReducer*>(tensor_group_);
  RETURN_IF_ERROR(agree_on_shares(norm_reducer));
  RETURN_IF_ERROR(make_lanes());
  kernels::OpStateOptions op_options = op_state_options(config, options_);
  // They have a block on every processor.
  op_options.persistent_kernels = op_options.persistent_kernels && !lanes_wait_on_device();
  ASSIGN_OR_RETURN(op_state_, parts_.ops->make_state(*parts_.backend, op_options));
  ops_ = std::make_unique<kernels::Ops>(*parts_.ops, *op_state_, *compute_, parts_.hooks.observer);

  parallel::Context context{.mesh = mesh_,
                            .dtype = options_.dtype,
                            .arena = &arena_,
                            .weights = &weight_map_,
                            .ops = ops_.get(),
                            .tensor_group = tensor_group_,
                            .norm_reducer = norm_reducer};
  ASSIGN_OR_RETURN(model_, build_model(*parts_.checkpoint, options_, context));
  RETURN_IF_ERROR(arena_.allocate(*parts_.backend));
  RETURN_IF_ERROR(load());
  RETURN_IF_ERROR(agree_on_terms(norm_reducer));
  RETURN_IF_ERROR(agree_on_rows(norm_reducer));
  ASSIGN_OR_RETURN(
      kv_cache_, KvCache::create(*parts_.backend, kv_spec_of(*model_.model, options_), options_.num_blocks));
  ASSIGN_OR_RETURN(runner_,
                   ModelRunner::create({.context = context,
                                        .model = model_.model.get(),
                                        .sampler = model_.sampler.get(),
                                        .kv_cache = &kv_cache_,
                                        .lanes = &lanes_,
                                        .backend = parts_.backend,
                                        .hidden_size = config.hidden_size,
                                        .hooks = parts_.hooks},
                                       options_));
  RETURN_IF_ERROR(warm_up());
  warm_up_collectives_ = meters().collectives;
  if (parts_.hooks.on_phase) parts_.hooks.on_phase("idle");
  return parts_.world->barrier(Deadline::after_seconds(kAgreeDeadlineSeconds));
}

// A block table is the same on every rank, so the rank with the least room decides.
Status RankEngine::agree_on_blocks() {
  int64_t mine =
      options_.num_blocks > 0 ? options_.num_blocks : options_.kv_cache_bytes / plan_.kv_block_bytes;
  ASSIGN_OR_RETURN(
      std::vector<std::string> all,
      parts_.world->all_gather_bytes(std::to_string(mine), Deadline::after_seconds(kAgreeDeadlineSeconds)));
  for (const std::string& theirs : all) mine = std::min<int64_t>(mine, std::stoll(theirs));
  // No sequence can use more than its own length.
  options_.num_blocks = std::min(mine, options_.max_num_seqs * options_.max_blocks_per_sequence());
  if (options_.num_blocks < options_.max_blocks_per_sequence()) {
    return resource_exhausted(
        format("the KV cache has room for {} tokens, fewer than one sequence of --max-model-len {}: lower "
               "it, or give "
               "more memory (--kv-cache-memory-bytes, --gpu-memory-utilization)",
               options_.num_blocks * options_.block_size,
               options_.max_model_len));
  }
  return ok_status();
}

// Stages hand on rows by shares or whole: all do the same.
Status RankEngine::agree_on_shares(const comm::NormReducer* reducer) {
  parallel::Layout& layout = options_.layout;
  if (layout.tp == 1 || layout.sequence_parallel_from == parallel::Layout::kNever) return ok_status();
  const bool takes = reducer != nullptr &&
                     reducer->takes_shares(
                         options_.padded_tokens(), parts_.checkpoint->config().hidden_size, options_.dtype);
  ASSIGN_OR_RETURN(std::vector<bool> all_take, agree({takes}));
  if (all_take[0]) return ok_status();
  layout.sequence_parallel_from = parallel::Layout::kNever;
  mesh_ = parallel::Mesh(layout, mesh_.rank());
  if (mesh_.rank() == 0)
    log_info("no step is sequence parallel: steps of {} tokens have no kernel for norms of shares",
             options_.max_num_batched_tokens);
  return ok_status();
}

// Terms stand where all ranks look for them. Handed over by as many products as there are ranks, each of
// which reads the weights, they would cost more than they save.
Status RankEngine::agree_on_terms(comm::NormReducer* reducer) {
  if (!mesh_.sequence_parallel()) return ok_status();
  bool makes = reducer != nullptr;
  for (const parallel::MatrixSlot& slot : weight_map_.matrices) {
    if (slot.makes_terms)
      makes = makes && parts_.ops->makes_shares(*op_state_, *slot.target, slot.has_bias, options_.dtype);
  }
  ASSIGN_OR_RETURN(std::vector<bool> all_make, agree({makes}));
  if (all_make[0]) reducer->hand_terms();
  return ok_status();
}

// A norm that leaves codes to the products behind it, or leaves it to them to hand its rows, does so on every
// rank. With stages other kernels may wait for a peer on the same GPU, in the room that a product needs to
// hand its rows.
Status RankEngine::agree_on_rows(const comm::NormReducer* reducer) {
  const int64_t hidden = parts_.checkpoint->config().hidden_size;
  const int64_t least = mesh_.tp() * kernels::kHandedRows;
  const bool hands = mesh_.sequence_parallel() && mesh_.pp() == 1 && reducer != nullptr &&
                     reducer->handed_rows(least, hidden, options_.dtype, false).size > 0;
  // How many rows a step has is the same on all ranks: these stand for all that products take codes of.
  const int64_t rows = options_.padded_tokens() / kernels::kHandedRows * kernels::kHandedRows;
  std::vector<bool> mine;  // by matrix
  for (const parallel::MatrixSlot& slot : weight_map_.matrices) {
    if (slot.normed_as == nullptr) continue;
    const Weight& weight = *slot.target;
    mine.push_back(parts_.ops->takes_codes(*op_state_, weight, slot.has_bias, options_.dtype, rows));
    mine.push_back(hands &&
                   parts_.ops->hands_rows(*op_state_, weight, slot.has_bias, options_.dtype, mesh_.tp()));
  }
  // Other stages may have more layers.
  ASSIGN_OR_RETURN(
      std::vector<bool> all,
      comm::agree(*parts_.world, mesh_.tensor_group(), mine, Deadline::after_seconds(kAgreeDeadlineSeconds)));
  auto next = all.begin();
  for (const parallel::MatrixSlot& slot : weight_map_.matrices) {
    if (slot.normed_as == nullptr) continue;
    *slot.normed_as = {.codes = next[0], .shares = next[1]};
    next += 2;
  }
  return ok_status();
}

Result<std::vector<bool>> RankEngine::agree(const std::vector<bool>& mine) {
  return comm::agree(*parts_.world, mine, Deadline::after_seconds(kAgreeDeadlineSeconds));
}

Result<comm::Communicator*> RankEngine::connect(const std::string& name,
                                                const std::vector<int>& ranks,
                                                const comm::GroupUse& use) {
  ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> made,
                   parts_.make_communicator ? parts_.make_communicator(ranks, name, use)
                                            : parts_.world->make_communicator(ranks, name));
  communicators_.push_back(std::move(made));
  return communicators_.back().get();
}

Status RankEngine::make_communicators() {
  ASSIGN_OR_RETURN(
      tensor_group_,
      connect("tp" + std::to_string(mesh_.stage()),
              mesh_.tensor_group(),
              {.shared_bytes = shared_step_bytes(parts_.checkpoint->config().hidden_size, options_)}));
  return ok_status();
}

Status RankEngine::make_lanes() {
  if (mesh_.pp() == 1) return ok_status();
  int64_t hidden_size = parts_.checkpoint->config().hidden_size;
  // Pairs are numbered by stage, so that every rank makes them in an order that cannot lock up.
  auto lane = [&](const std::string& name,
                  int from_stage,
                  int to_stage,
                  int64_t bytes) -> Result<std::unique_ptr<parallel::Lane>> {
    std::vector<int> pair = {mesh_.rank_of(from_stage, mesh_.rank_tp()),
                             mesh_.rank_of(to_stage, mesh_.rank_tp())};
    const bool sends = mesh_.stage() == from_stage;
    const int peer = sends ? 1 : 0;
    ASSIGN_OR_RETURN(comm::Communicator * communicator,
                     connect(name + std::to_string(from_stage) + "." + std::to_string(mesh_.rank_tp()),
                             pair,
                             {.hands_off = true}));
    const parallel::SendOrder order =
        sends ? parallel::send_order(*communicator, mesh_.tp()) : parallel::SendOrder::kOwnStream;
    return parallel::Lane::create(
        *parts_.backend, *communicator, peer, bytes, lane_depth(options_), order, name);
  };
  int64_t bytes = handoff_bytes(hidden_size, options_);
  if (!mesh_.first_stage()) {
    ASSIGN_OR_RETURN(lanes_.from_previous, lane("stage", mesh_.stage() - 1, mesh_.stage(), bytes));
  }
  if (!mesh_.last_stage()) {
    ASSIGN_OR_RETURN(lanes_.to_next, lane("stage", mesh_.stage(), mesh_.stage() + 1, bytes));
  }
  if (mesh_.last_stage()) {
    ASSIGN_OR_RETURN(lanes_.tokens_to_first, lane("token-return", mesh_.pp() - 1, 0, token_bytes(options_)));
  }
  if (mesh_.first_stage()) {
    ASSIGN_OR_RETURN(lanes_.tokens_from_last, lane("token-return", mesh_.pp() - 1, 0, token_bytes(options_)));
  }
  return ok_status();
}

bool RankEngine::lanes_wait_on_device() const {
  const auto waits = [](const std::unique_ptr<parallel::Lane>& lane) {
    return lane != nullptr && lane->waits_on_device();
  };
  return waits(lanes_.from_previous) || waits(lanes_.tokens_from_last);
}

Status RankEngine::load() {
  ASSIGN_OR_RETURN(model::LoadPlan plan,
                   model::plan_load(weight_map_, *parts_.checkpoint, *parts_.ops, held_weights(options_)));
  checkpoint::ReadOptions read{.threads = options_.load_threads, .progress = parts_.load_progress};
  ASSIGN_OR_RETURN(
      weights_,
      model::load_weights(
          weight_map_, plan, *parts_.checkpoint, options_.dtype, *parts_.backend, *compute_, read));
  for (const parallel::MatrixSlot& slot : weight_map_.matrices) {
    RETURN_IF_ERROR(parts_.ops->prepare_weight(*op_state_, *compute_, *slot.target));
  }
  return compute_->synchronize(Deadline::after_seconds(kAgreeDeadlineSeconds));
}

// Where steps are replayed, their kernels are chosen for good: by trying them. Then prompts of several
// lengths load kernels that a first request would have to wait for; elsewhere a short one is enough for that.
// What a profile sees op by op are the kernels that would be replayed.
Status RankEngine::warm_up() {
  constexpr int64_t kShortPrompt = 32;
  if (parts_.hooks.on_phase) parts_.hooks.on_phase("warming up");
  const int64_t most = options_.max_num_batched_tokens;
  if (options_.graph_sizes.empty() && options_.tuned_sizes.empty())
    return warm_up_prompt(std::min(kShortPrompt, most));
  op_state_->start_tuning();
  Status status = runner_->warm_up(most);
  for (int64_t sequences : options_.tuned_sizes)
    if (status.ok()) status = runner_->warm_up_decodes(sequences);
  if (status.ok() && !options_.graph_sizes.empty()) status = capture_graphs();
  op_state_->end_tuning();
  for (int64_t tokens = kShortPrompt; status.ok() && tokens < most; tokens *= 2)
    status = warm_up_prompt(tokens);
  return status;
}

Status RankEngine::warm_up_prompt(int64_t tokens) {
  TimePoint begin = Clock::now();
  RETURN_IF_ERROR(runner_->warm_up(tokens));
  // Here stages work at the same time, in a step one after the other.
  warm_up_pace_.note(tokens, seconds_between(begin, Clock::now()) * options_.layout.pp);
  return ok_status();
}

Status RankEngine::capture_graphs() {
  TimePoint begin = Clock::now();
  ASSIGN_OR_RETURN(device::MemoryInfo before, parts_.backend->memory_info());
  RETURN_IF_ERROR(runner_->capture_graphs());
  ASSIGN_OR_RETURN(device::MemoryInfo after, parts_.backend->memory_info());
  if (mesh_.rank() != 0) return ok_status();
  log_info("decode graphs for {} batch sizes up to {}, made in {} s, {} of device memory ({} planned)",
           options_.graph_sizes.size(),
           options_.graph_sizes.back(),
           seconds_between(begin, Clock::now()),
           human_bytes(before.free_bytes - after.free_bytes),
           human_bytes(plan_.graph_bytes));
  return ok_status();
}

RankMeters RankEngine::meters() {
  StepMeter& steps = runner_->meter();
  steps.harvest();
  RankMeters meters{.through_step = steps.through_step(), .step_seconds = steps.step_seconds()};
  for (const auto& communicator : communicators_) {
    const auto* timed = dynamic_cast<const comm::TimesCollectives*>(communicator.get());
    if (timed == nullptr) continue;
    comm::CollectiveTimes times = timed->collective_times();
    for (size_t i = 0; i < kNumCollectives; ++i) {
      meters.collectives[i].calls += times.calls[i];
      meters.collectives[i].seconds += static_cast<double>(times.ns[i]) * 1e-9;
    }
  }
  for (size_t i = 0; i < kNumCollectives; ++i) {
    meters.collectives[i].calls -= warm_up_collectives_[i].calls;
    meters.collectives[i].seconds -= warm_up_collectives_[i].seconds;
  }
  return meters;
}

Status RankEngine::poll() {
  for (const auto& communicator : communicators_) RETURN_IF_ERROR(communicator->poll());
  return runner_->poll();
}

void RankEngine::abort(const Status& cause) {
  for (const auto& communicator : communicators_) communicator->stop_waiting();
  for (const auto& communicator : communicators_) communicator->abort(cause);
}

}  // namespace llm_dist::engine
