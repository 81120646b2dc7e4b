#include "launch/ceilings.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "launch/stream_timer.h"
#include "parallel/partition.h"

namespace llm_dist::launch {

std::string describe(const Ceilings& ceilings) {
  char part[96];
  std::snprintf(part, sizeof part, "memory %.1f GB/s", ceilings.read_bytes_per_second * 1e-9);
  std::string text = std::string("ceilings measured here: ") + part;
  if (ceilings.gemm_flops_per_second > 0) {
    std::snprintf(
        part, sizeof part, ", matrix products %.1f TFLOP/s", ceilings.gemm_flops_per_second * 1e-12);
    text += part;
  }
  if (ceilings.head_flops_per_second != ceilings.gemm_flops_per_second) {
    std::snprintf(part, sizeof part, ", of the head %.1f TFLOP/s", ceilings.head_flops_per_second * 1e-12);
    text += part;
  }
  for (auto [rows, seconds] : ceilings.all_reduce_seconds) {
    if (seconds <= 0) continue;
    std::snprintf(part, sizeof part, ", all-reduce of %d rows %.1f us", rows, seconds * 1e6);
    text += part;
  }
  return text;
}

std::string ceilings_json(const Ceilings& ceilings) {
  nlohmann::json json = {{"memory_read_bytes_per_second", ceilings.read_bytes_per_second},
                         {"gemm_flops_per_second", ceilings.gemm_flops_per_second},
                         {"head_flops_per_second", ceilings.head_flops_per_second}};
  for (auto [rows, seconds] : ceilings.all_reduce_seconds) {
    json["all_reduce_us"][std::to_string(rows)] = seconds * 1e6;
  }
  return json.dump();
}

double step_weight_bytes(RankProcess& process) {
  const auto bytes = static_cast<double>(process.engine().memory_plan().weight_bytes);
  const parallel::Mesh mesh(process.engine().options().layout, process.rank());
  const bool is_head = process.checkpoint().config().tie_word_embeddings && mesh.last_stage();
  if (!mesh.first_stage() || is_head) return bytes;
  const checkpoint::TensorInfo* table = process.checkpoint().find("model.embed_tokens.weight");
  return table == nullptr ? bytes : bytes - static_cast<double>(table->bytes()) / mesh.tp();
}

namespace {

// As a step does it where steps are graphs.
Result<double> time_in_step(StreamTimer& timer, const std::function<void()>& issue) {
  constexpr int kCalls = 64;
  return timer.backend().prefers_graphs() ? timer.mean_in_graph(kCalls, 8, issue)
                                          : timer.mean_of(kCalls, issue);
}

// Random elements: products of constants draw less power and run faster.
Result<device::Buffer> random_buffer(StreamTimer& timer, DType dtype, int64_t count) {
  constexpr int64_t kPieceElements = 1 << 20;
  int64_t width = dtype_bytes(dtype);
  int64_t piece_bytes = std::min(count, kPieceElements) * width;
  ASSIGN_OR_RETURN(device::Buffer piece, timer.backend().allocate(piece_bytes, device::MemoryKind::kPinned));
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  constexpr float kCodeScale = 5000;  // makes the codes of f8_e4m3 fill their range
  for (int64_t i = 0; i < piece_bytes / width; ++i) {
    float value = normal(random);
    BFloat16 as_bf16 = from_float<BFloat16>(value);
    Float16 as_f16 = from_float<Float16>(value);
    Float8E4M3 as_f8 = to_f8e4m3(value * kCodeScale);
    const void* from = dtype == DType::kF32    ? static_cast<const void*>(&value)
                       : dtype == DType::kBF16 ? static_cast<const void*>(&as_bf16)
                       : dtype == DType::kF16  ? static_cast<const void*>(&as_f16)
                                               : static_cast<const void*>(&as_f8);
    std::memcpy(piece.data() + i * width, from, static_cast<size_t>(width));
  }
  ASSIGN_OR_RETURN(device::Buffer buffer,
                   timer.backend().allocate(count * width, device::MemoryKind::kDevice));
  for (int64_t at = 0; at < buffer.bytes(); at += piece_bytes) {
    int64_t bytes = std::min(piece_bytes, buffer.bytes() - at);
    timer.stream().copy(buffer.view(DType::kU8, {bytes}, at), piece.view(DType::kU8, {bytes}));
  }
  RETURN_IF_ERROR(timer.synchronize());
  return buffer;
}

bool is_dense(RankProcess& process) {
  const checkpoint::TensorInfo* tensor = process.checkpoint().find("model.layers.0.mlp.down_proj.weight");
  return tensor == nullptr || !is_quantized(tensor->scheme) ||
         !process.device().ops->takes_weight(tensor->scheme, process.engine().options().dtype);
}

bool has_f8_layers(RankProcess& process) {
  return engine::op_state_options(process.checkpoint().config(), process.engine().options()).f8_weights;
}

// A product of a prompt step whose kernels are to be timed.
struct TimedProduct {
  kernels::LinearParams params;
  Tensor x_codes;  // what kernels may take in the place of x, where a norm leaves it; or empty
  Tensor x_scales;
  int repeats = 0;

  [[nodiscard]] double flops() const {
    const Weight& weight = params.weight;
    return 2.0 * static_cast<double>(params.x.dim(0)) * static_cast<double>(weight.n) *
           static_cast<double>(weight.k);
  }
};

Result<double> seconds_of(RankProcess& process,
                          StreamTimer& timer,
                          const TimedProduct& product,
                          kernels::LinearKernels kernels) {
  const kernels::OpTable& ops = *process.device().ops;
  const engine::EngineOptions& options = process.engine().options();
  kernels::LinearParams params = product.params;
  ASSIGN_OR_RETURN(auto state,
                   ops.make_state(timer.backend(),
                                  {.threads = options.threads,
                                   .activation_dtype = options.dtype,
                                   .max_tokens = params.x.dim(0),
                                   .max_features = std::max(params.weight.n, params.weight.k),
                                   .max_sequences = 1,
                                   .vocab_size = 1,
                                   .linear = kernels,
                                   .f8_weights = params.weight.scheme == scheme_of(DType::kF8E4M3)}));
  RETURN_IF_ERROR(ops.prepare_weight(*state, timer.stream(), params.weight));
  const bool takes_codes =
      product.x_codes && ops.takes_codes(*state, params.weight, false, options.dtype, params.x.dim(0));
  if (takes_codes) {
    params.x = product.x_codes;
    params.x_scales = product.x_scales;
  }
  return timer.mean_of(product.repeats, [&] { ops.linear(*state, timer.stream(), params); });
}

// Of the merged gate and up projection of a prompt step, its weights in `dtype`: by whichever is faster
// there, our kernels or the library's, so that the rate of ours is not its own ceiling alone.
Result<double> gemm_flops(RankProcess& process, StreamTimer& timer, DType dtype) {
  const checkpoint::ModelConfig& config = process.checkpoint().config();
  const engine::EngineOptions& options = process.engine().options();
  bool on_cpu = process.device().device.type == DeviceType::kCpu;
  int64_t m = std::min<int64_t>(on_cpu ? 128 : 4096, options.max_num_batched_tokens);
  int64_t n = 2 * config.intermediate_size / options.layout.tp;
  int64_t k = config.hidden_size;
  ASSIGN_OR_RETURN(device::Buffer w, random_buffer(timer, dtype, n * k));
  ASSIGN_OR_RETURN(device::Buffer scales, random_buffer(timer, DType::kF32, n));
  ASSIGN_OR_RETURN(device::Buffer x, random_buffer(timer, options.dtype, m * k));
  ASSIGN_OR_RETURN(device::Buffer y,
                   timer.backend().allocate(m * n * dtype_bytes(options.dtype), device::MemoryKind::kDevice));
  Weight weight{.scheme = scheme_of(dtype), .n = n, .k = k};
  weight.parts[0] = w.view(DType::kU8, {n, k * dtype_bytes(dtype)});
  if (dtype == DType::kF8E4M3) weight.parts[1] = scales.view(DType::kF32, {n});
  TimedProduct product{
      .params = {.x = x.view(options.dtype, {m, k}), .weight = weight, .out = y.view(options.dtype, {m, n})},
      .repeats = on_cpu ? 3 : 20};
  device::Buffer codes;
  device::Buffer code_scales;
  if (dtype == DType::kF8E4M3) {
    ASSIGN_OR_RETURN(codes, random_buffer(timer, dtype, m * k));
    ASSIGN_OR_RETURN(code_scales, random_buffer(timer, DType::kF32, m));
    product.x_codes = codes.view(dtype, {m, k});
    product.x_scales = code_scales.view(DType::kF32, {1, m});
  }
  ASSIGN_OR_RETURN(double seconds, seconds_of(process, timer, product, kernels::LinearKernels::kFastest));
  if (!on_cpu) {
    ASSIGN_OR_RETURN(double of_library,
                     seconds_of(process, timer, product, kernels::LinearKernels::kLibrary));
    seconds = std::min(seconds, of_library);
  }
  return product.flops() / seconds;
}

Status all_reduces(RankProcess& process,
                   StreamTimer& timer,
                   const std::vector<int>& rows_of_steps,
                   Ceilings& ceilings) {
  const engine::EngineOptions& options = process.engine().options();
  for (int rows : rows_of_steps) ceilings.all_reduce_seconds[rows] = 0;
  if (options.layout.tp == 1) return ok_status();
  parallel::Mesh mesh(options.layout, process.rank());
  ASSIGN_OR_RETURN(
      std::unique_ptr<comm::Communicator> group,
      make_device_communicator(process.world(), process.device(), mesh.tensor_group(), "ceilings"));
  int64_t hidden = process.checkpoint().config().hidden_size;
  for (auto& [rows, seconds] : ceilings.all_reduce_seconds) {
    ASSIGN_OR_RETURN(
        device::Buffer data,
        timer.backend().allocate(rows * hidden * dtype_bytes(options.dtype), device::MemoryKind::kDevice));
    Tensor tensor = data.view(options.dtype, {rows, hidden});
    auto reduce = [&] { group->all_reduce(tensor, comm::ReduceOp::kSum, timer.stream()); };
    RETURN_IF_ERROR(timer.mean_of(20, reduce).status());  // brings the ranks together
    ASSIGN_OR_RETURN(seconds, time_in_step(timer, reduce));
  }
  // Nobody's end of the group goes while another still uses it.
  return process.world().barrier(Deadline::after_seconds(kMeasureSeconds));
}

double head_bytes(RankProcess& process) {
  const checkpoint::ModelConfig& config = process.checkpoint().config();
  const engine::EngineOptions& options = process.engine().options();
  const parallel::Mesh mesh(options.layout, process.rank());
  if (!mesh.last_stage()) return 0;
  return static_cast<double>(config.vocab_size) * static_cast<double>(config.hidden_size) /
         options.layout.tp * static_cast<double>(dtype_bytes(options.dtype));
}

StageWork work_of_stage(RankProcess& process) {
  const checkpoint::ModelConfig& config = process.checkpoint().config();
  const engine::EngineOptions& options = process.engine().options();
  const engine::MemoryPlan& plan = process.engine().memory_plan();
  const parallel::Mesh mesh(options.layout, process.rank());
  const auto width = static_cast<double>(dtype_bytes(options.dtype));
  StageWork work{.weight_bytes = step_weight_bytes(process),
                 .kv_bytes_per_token = plan.kv_bytes_per_token(),
                 .head_flops = 2 * head_bytes(process) / width,
                 .layers = plan.layers.count};
  const double layer_bytes = work.weight_bytes - head_bytes(process);
  work.layer_flops = 2 * (has_f8_layers(process) ? layer_bytes : layer_bytes / width);
  if (mesh.last_stage()) {
    const int64_t features = config.num_heads * config.head_dim + 3 * config.intermediate_size;
    work.unread_flops = 2.0 * static_cast<double>(features * config.hidden_size) / options.layout.tp;
  }
  return work;
}

// Of each stage that of its first rank.
Result<std::vector<StageWork>> work_of_stages(RankProcess& process) {
  const StageWork mine = work_of_stage(process);
  ASSIGN_OR_RETURN(
      std::vector<std::string> all,
      process.world().all_gather_bytes(std::string(reinterpret_cast<const char*>(&mine), sizeof mine),
                                       Deadline::after_seconds(kMeasureSeconds)));
  const parallel::Mesh mesh(process.engine().options().layout, process.rank());
  std::vector<StageWork> stages(static_cast<size_t>(mesh.pp()));
  for (int stage = 0; stage < mesh.pp(); ++stage) {
    const std::string& theirs = all[static_cast<size_t>(mesh.rank_of(stage, 0))];
    if (theirs.size() != sizeof mine) return data_loss(format("stage {} sent no work", stage));
    std::memcpy(&stages[static_cast<size_t>(stage)], theirs.data(), sizeof mine);
  }
  return stages;
}

}  // namespace

DecodeShape decode_shape(RankProcess& process, int batch, int64_t context) {
  return {
      .batch = batch, .context = context, .micro_batches = process.engine().options().num_micro_batches()};
}

Result<Ceilings> measure_ceilings(RankProcess& process, const std::vector<int>& batches) {
  device::Backend& backend = *process.device().backend;
  ASSIGN_OR_RETURN(StreamTimer timer, StreamTimer::create(backend, "ceilings"));
  Ceilings ceilings;
  // Ranks that share a host's memory read it together in a step, and so they do here.
  RETURN_IF_ERROR(process.world().barrier(Deadline::after_seconds(kMeasureSeconds)));
  ASSIGN_OR_RETURN(
      ceilings.read_bytes_per_second,
      process.device().read_bandwidth(
          backend, process.engine().options().threads, static_cast<int64_t>(step_weight_bytes(process))));
  if (is_dense(process)) {
    ASSIGN_OR_RETURN(ceilings.head_flops_per_second,
                     gemm_flops(process, timer, process.engine().options().dtype));
    ceilings.gemm_flops_per_second = ceilings.head_flops_per_second;
    if (has_f8_layers(process)) {
      ASSIGN_OR_RETURN(ceilings.gemm_flops_per_second, gemm_flops(process, timer, DType::kF8E4M3));
    }
  }
  std::vector<int> rows;
  rows.reserve(batches.size());
  for (int batch : batches) rows.push_back(decode_shape(process, batch, 0).rows_of_step());
  RETURN_IF_ERROR(all_reduces(process, timer, rows, ceilings));
  ASSIGN_OR_RETURN(ceilings.stages, work_of_stages(process));
  return ceilings;
}

}  // namespace llm_dist::launch
