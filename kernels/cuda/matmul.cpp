#include "kernels/cuda/matmul.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cuda/device/overlapped_launch.h"
#include "kernels/cuda/library_product.h"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/silu_and_mul.h"
#include "kernels/cuda/skinny_linear.h"
#include "src/base/log.h"
#include "src/device/cuda/cuda_error.h"

namespace llm_dist::kernels {
namespace {

// What the library thinks are its best ones, in that order.
constexpr int kCandidates = 16;
// A candidate takes the first guess's place only when it is faster by more than timings scatter.
constexpr float kClearlyFaster = 0.995f;

static_assert(sizeof(MatmulChoices::Algorithm) == sizeof(cublasLtMatmulAlgo_t));

// In the place of a library's algorithm: ours, then which of its divisions. The library's first word is a
// small number.
constexpr uint64_t kStreamedTag = 0x73747265616d6564;
// Ours for prompts from so many rows of x on. Which kernel is the faster one shows at the GPU's limit of
// power, where prompts are: a single call on a cool GPU says otherwise (docs/kernels.md).
constexpr int64_t kPromptRows = 1024;
// Up to so many rows of x the first guess is ours: beyond, the library's kernels come close or are faster.
constexpr int64_t kStreamedRows = 32;

// Where ours are not compared with the library's.
bool are_ours(LinearKernels kernels) {
  return kernels == LinearKernels::kOwn || StreamedLinear::wanted_division(kernels).has_value();
}

// Whatever a choice of kernel depends on besides the shape.
Result<std::string> environment(LinearKernels kernels) {
  int index = 0;
  cudaDeviceProp device{};
  int driver = 0;
  RETURN_IF_ERROR(device::cuda_status(cudaGetDevice(&index), "cudaGetDevice"));
  RETURN_IF_ERROR(device::cuda_status(cudaGetDeviceProperties(&device, index), "cudaGetDeviceProperties"));
  RETURN_IF_ERROR(device::cuda_status(cudaDriverGetVersion(&driver), "cudaDriverGetVersion"));
  const auto wanted = StreamedLinear::wanted_division(kernels);
  return format(
      "{}, compute {}.{}, {} processors, driver {}, cublasLt {}, {}{}{}",
      device.name,
      device.major,
      device.minor,
      device.multiProcessorCount,
      driver,
      cublasLtGetVersion(),
      kernels == LinearKernels::kLibrary ? "alone" : format("streamed {}", StreamedLinear::kVersion),
      // Of those that try none of the library's, apart: their choices are not everyone's.
      wanted ? format(", division {}", wanted->code()) : (are_ours(kernels) ? ", ours" : ""),
      early_starts_allowed ? "" : ", none early");
}

}  // namespace

// How a shape is run.
struct Matmul::Plan {
  LibraryProduct library;
  Candidate choice;
};

Matmul::Matmul(cublasLtHandle_t handle,
               const MatmulMemory& memory,
               MatmulChoices choices,
               const HopperDevice& device,
               LinearKernels kernels)
    : handle_(handle),
      memory_(memory),
      choices_(std::move(choices)),
      streamed_(device),
      prompts_(device),
      kernels_(kernels) {}

Matmul::~Matmul() {
  plans_.clear();
  (void)cublasLtDestroy(handle_);
}

Result<std::unique_ptr<Matmul>> Matmul::make(const HopperDevice& device,
                                             const MatmulMemory& memory,
                                             const std::string& cache_folder,
                                             LinearKernels kernels) {
  ASSIGN_OR_RETURN(std::string where, environment(kernels));
  MatmulChoices choices(cache_folder, where);
  // It only costs tuning again.
  if (Status loaded = choices.load(); !loaded.ok()) log_warning("{}: not used", loaded.message());
  cublasLtHandle_t handle = nullptr;
  RETURN_IF_ERROR(blas_status(cublasLtCreate(&handle), "cublasLtCreate"));
  return std::unique_ptr<Matmul>(new Matmul(handle, memory, std::move(choices), device, kernels));
}

void Matmul::start_tuning() { timer_ = std::make_unique<MatmulTimer>(); }

void Matmul::end_tuning() {
  timer_.reset();
  if (Status saved = choices_.save(); !saved.ok())
    log_warning("choices of kernels for matrix products are not kept: {}", saved.message());
}

// Whether there is memory for codes of x, where it needs any: there is none where nobody announced such
// weights.
bool Matmul::has_codes(const MatmulShape& shape) const {
  const int64_t rows = std::max(shape.m, StreamMemory::kMostCodeRows);
  return !shape.f8_weight || (rows <= memory_.code_rows && rows * shape.k <= memory_.codes_bytes);
}

bool Matmul::takes_streamed(const MatmulShape& shape) const {
  return kernels_ != LinearKernels::kLibrary && has_codes(shape) && streamed_.takes(shape);
}

// Likely best first; none where ours do not take the shape.
std::vector<Matmul::Candidate> Matmul::streamed_candidates(const MatmulShape& shape) const {
  std::vector<Candidate> found;
  if (!takes_streamed(shape)) return found;
  auto add = [&found](const StreamedDivision& division) {
    found.push_back({.kernel = Candidate::Kernel::kStreamed, .division = division});
  };
  const auto wanted = StreamedLinear::wanted_division(kernels_);
  if (wanted && streamed_.divides(shape, *wanted)) {
    add(*wanted);
  } else {
    for (const StreamedDivision& division : streamed_.divisions(shape)) add(division);
  }
  return found;
}

bool Matmul::takes_prompt(const MatmulShape& shape) const {
  const bool takes = shape.gated ? prompts_.takes_gated(shape) : prompts_.takes_plain(shape);
  if (kernels_ == LinearKernels::kLibrary || !has_codes(shape) || !takes) return false;
  // A division is wanted of the kernels for few rows.
  if (are_ours(kernels_)) return kernels_ == LinearKernels::kOwn || !takes_streamed(shape);
  return shape.m >= kPromptRows && (shape.gated || shape.m % PromptLinear::kClusterRows == 0);
}

bool Matmul::hands(const MatmulShape& shape, int ranks) const {
  return takes_prompt(shape) && prompts_.takes_handed(shape, ranks);
}

bool Matmul::prefers_shares(const MatmulShape& shape, int shares) const {
  return kernels_ != LinearKernels::kLibrary && has_codes(shape) && prompts_.takes_shares(shape, shares);
}

void Matmul::run_shares(MatmulShape shape,
                        MatmulOperands operands,
                        std::span<void* const> shares,
                        int first,
                        device::CudaStream& stream) const {
  if (Status status = quantize_x(shape, operands, stream); !status.ok())
    return stream.fail(std::move(status));
  stream.check(prompts_.launch_shares(shape, operands, shares, first, stream.handle()), "linear in shares");
}

// Whether rows of x can be quantized for the library.
bool Matmul::takes_quantized(const MatmulShape& shape) const {
  constexpr int64_t kUnit = 16;  // elements of x and W that the library wants whole
  return shape.k % kUnit == 0 && shape.n % kUnit == 0 && shape.x_stride % 8 == 0 && shape.alignment >= 16 &&
         has_codes(shape);
}

// Rows of x by a weight in f8_e4m3, rounded: their codes in the place of x, where it is not codes as it is.
Status Matmul::quantize_x(MatmulShape& shape, MatmulOperands& operands, device::CudaStream& stream) const {
  if (!shape.f8_weight || shape.x_codes || shape.takes_groups()) return ok_status();
  const QuantizeRows rows{.in = shape.in,
                          .x = operands.x,
                          .x_stride = shape.x_stride,
                          .rows = shape.m,
                          .k = shape.k,
                          .part_rows = shape.m,
                          .codes = memory_.codes,
                          .scales = memory_.scales};
  operands.x = memory_.codes;
  operands.x_scales = memory_.scales;
  shape.x_stride = shape.k;
  return device::cuda_status(launch_quantize_rows(rows, stream.handle()), "quantize_rows");
}

Status Matmul::issue_prompt(MatmulShape shape, MatmulOperands operands, device::CudaStream& stream) const {
  RETURN_IF_ERROR(quantize_x(shape, operands, stream));
  const cudaError_t error = shape.gated ? prompts_.launch_gated(shape, operands, stream.handle())
                                        : prompts_.launch_plain(shape, operands, stream.handle());
  return device::cuda_status(error, "prompt's linear");
}

Status Matmul::issue(const Plan& plan,
                     const MatmulShape& shape,
                     const Candidate& candidate,
                     const MatmulOperands& operands,
                     device::CudaStream& stream) const {
  using enum Candidate::Kernel;
  switch (candidate.kernel) {
    case kPrompt: return issue_prompt(shape, operands, stream);
    case kStreamed: {
      const StreamMemory memory{.sums = static_cast<float*>(memory_.workspace),
                                .flags = memory_.flags,
                                .codes = memory_.codes,
                                .code_scales = memory_.scales};
      return device::cuda_status(
          streamed_.launch(shape, operands, candidate.division, memory, stream.handle()), "streamed linear");
    }
    case kByRows:
      if (shape.gated && !takes_skinny_linear(shape)) break;
      return device::cuda_status(launch_skinny_linear(shape, operands, stream.handle()), "linear by rows");
    case kLibrary:
      if (shape.gated) break;
      return issue_library(plan, shape, candidate, operands, stream);
  }
  return issue_then_gate(plan, shape, candidate, operands, stream);
}

// By a kernel that knows no gates.
Status Matmul::issue_then_gate(const Plan& plan,
                               const MatmulShape& shape,
                               const Candidate& candidate,
                               const MatmulOperands& operands,
                               device::CudaStream& stream) const {
  MatmulShape product = shape;
  product.gated = false;
  product.y_stride = shape.n;
  MatmulOperands to_product = operands;
  to_product.y = operands.product;
  RETURN_IF_ERROR(issue(plan, product, candidate, to_product, stream));
  const GatedRows rows{.dtype = shape.out,
                       .gate_up = operands.product,
                       .gate_up_stride = shape.n,
                       .out = operands.y,
                       .out_stride = shape.y_stride,
                       .rows = shape.m,
                       .width = shape.columns()};
  return device::cuda_status(launch_silu_and_mul(rows, stream.handle()), "silu_and_mul");
}

Status Matmul::issue_library(const Plan& plan,
                             MatmulShape shape,
                             const Candidate& candidate,
                             MatmulOperands operands,
                             device::CudaStream& stream) const {
  RETURN_IF_ERROR(quantize_x(shape, operands, stream));
  return plan.library.multiply(
      handle_, candidate.library, operands, {memory_.workspace, memory_.workspace_bytes}, stream.handle());
}

Result<std::vector<Matmul::Candidate>> Matmul::library_candidates(const Plan& plan,
                                                                  const MatmulShape& shape,
                                                                  int most) const {
  ASSIGN_OR_RETURN(std::vector<cublasLtMatmulAlgo_t> algorithms,
                   plan.library.offers(handle_, shape, memory_.workspace_bytes, most));
  std::vector<Candidate> found;
  found.reserve(algorithms.size());
  for (const cublasLtMatmulAlgo_t& algorithm : algorithms) found.push_back({.library = algorithm});
  return found;
}

// Only kernels compete that round alike: all above kMostRowsInParts, below that the library's alone where
// ours do not take the shape.
std::vector<Matmul::Candidate> Matmul::f8_candidates(const Plan& plan,
                                                     const MatmulShape& shape,
                                                     int most) const {
  std::vector<Candidate> found = streamed_candidates(shape);
  const bool is_alone = !found.empty() && (shape.m <= kMostRowsInParts || are_ours(kernels_) || most == 1);
  if (!is_alone && takes_quantized(shape)) {
    auto library = library_candidates(plan, shape, most);
    if (library.ok()) found.insert(found.end(), library->begin(), library->end());
  }
  if (found.empty()) found.push_back({.kernel = Candidate::Kernel::kByRows});
  if (most == 1) found.resize(1);
  return found;
}

// Best guess first; one of them when `most` is one.
Result<std::vector<Matmul::Candidate>> Matmul::candidates(const Plan& plan,
                                                          const MatmulShape& shape,
                                                          int most) const {
  if (shape.f8_weight) return f8_candidates(plan, shape, most);
  const std::vector<Candidate> ours = streamed_candidates(shape);
  const bool ours_first = are_ours(kernels_) || shape.m <= kStreamedRows;
  if (!ours.empty() && ours_first && most == 1) return std::vector<Candidate>{ours.front()};
  if (!ours.empty() && are_ours(kernels_)) return ours;
  ASSIGN_OR_RETURN(std::vector<Candidate> all, library_candidates(plan, shape, most));
  if (most > 1) all.insert(ours_first ? all.begin() : all.end(), ours.begin(), ours.end());
  return all;
}

// Of `tried`.
Result<size_t> Matmul::fastest(const Plan& plan,
                               const MatmulShape& shape,
                               const std::vector<Candidate>& tried,
                               const MatmulOperands& operands,
                               device::CudaStream& stream) {
  ASSIGN_OR_RETURN(std::vector<float> times, timer_->time(tried.size(), stream.handle(), [&](size_t i) {
    return issue(plan, shape, tried[i], operands, stream).ok();
  }));
  const auto best = static_cast<size_t>(std::min_element(times.begin(), times.end()) - times.begin());
  return times[best] < kClearlyFaster * times[0] ? best : 0;
}

// What was chosen before, where it can be run here.
bool Matmul::take_known(Plan& plan, const MatmulShape& shape, const MatmulChoices::Algorithm* known) const {
  if (known == nullptr) return false;
  if ((*known)[0] == kStreamedTag) {
    plan.choice = {.kernel = Candidate::Kernel::kStreamed,
                   .division = StreamedDivision::of_code((*known)[1])};
    return takes_streamed(shape) && streamed_.divides(shape, plan.choice.division);
  }
  const bool is_ours = shape.m <= kMostRowsInParts && takes_streamed(shape);
  if (shape.f8_weight && (is_ours || !takes_quantized(shape))) return false;
  plan.choice = {};
  std::memcpy(&plan.choice.library, known->data(), sizeof plan.choice.library);
  return plan.library.takes(handle_, plan.choice.library, memory_.workspace_bytes);
}

Status Matmul::choose(Plan& plan,
                      const MatmulShape& shape,
                      const MatmulOperands& operands,
                      device::CudaStream& stream) {
  if (takes_prompt(shape)) {
    plan.choice.kernel = Candidate::Kernel::kPrompt;
    return ok_status();
  }
  if (take_known(plan, shape, choices_.find(shape))) return ok_status();
  const bool tunes = timer_ != nullptr;
  // Of a number of rows that was not tried: the library's first guess may take half as long again.
  if (!tunes && take_known(plan, shape, choices_.find_near(shape))) return ok_status();
  ASSIGN_OR_RETURN(std::vector<Candidate> tried, candidates(plan, shape, tunes ? kCandidates : 1));
  size_t best = 0;
  if (tunes && tried.front().kernel != Candidate::Kernel::kByRows) {
    ASSIGN_OR_RETURN(best, fastest(plan, shape, tried, operands, stream));
    MatmulChoices::Algorithm algorithm{};
    if (tried[best].kernel == Candidate::Kernel::kStreamed) {
      algorithm = {kStreamedTag, tried[best].division.code()};
    } else {
      std::memcpy(algorithm.data(), &tried[best].library, sizeof algorithm);
    }
    choices_.add(shape, algorithm);
    ++num_tuned_;
  }
  plan.choice = tried[best];
  return ok_status();
}

Result<const Matmul::Plan*> Matmul::plan_for(const MatmulShape& shape,
                                             const MatmulOperands& operands,
                                             device::CudaStream& stream) {
  auto found = plans_.find(shape);
  Plan* plan = found == plans_.end() ? nullptr : found->second.get();
  std::unique_ptr<Plan> made;
  if (plan == nullptr) {
    made = std::make_unique<Plan>();
    plan = made.get();
    RETURN_IF_ERROR(plan->library.describe(shape));
  }
  RETURN_IF_ERROR(plan->library.point_to(shape, operands, memory_.scales));
  if (made == nullptr) return plan;
  RETURN_IF_ERROR(choose(*plan, shape, operands, stream));
  return plans_.emplace(shape, std::move(made)).first->second.get();
}

bool Matmul::sends(const MatmulShape& shape, const device::PeerTerms& terms) const {
  const auto plan = plans_.find(shape);
  const int64_t copies = terms.part_columns > 0 ? 1 : terms.size - 1;
  return plan != plans_.end() && plan->second->choice.kernel == Candidate::Kernel::kStreamed &&
         !shape.gated && shape.out == shape.in && shape.m * copies <= kMostSentRows;
}

void Matmul::run(const MatmulShape& shape, const MatmulOperands& operands, device::CudaStream& stream) {
  CHECK(operands.terms.size == 0 || sends(shape, operands.terms), "{} rows to be sent", shape.m);
  CHECK(operands.handed.size == 0 || hands(shape, operands.handed.size), "{} rows to be handed", shape.m);
  auto plan = plan_for(shape, operands, stream);
  Status status = plan.status();
  last_run_ = status.ok() ? *plan : nullptr;
  if (status.ok()) status = issue(**plan, shape, (*plan)->choice, operands, stream);
  if (!status.ok()) stream.fail(std::move(status));
}

std::optional<StreamedDivision> Matmul::take_last_division() {
  const Plan* plan = std::exchange(last_run_, nullptr);
  if (plan == nullptr || plan->choice.kernel != Candidate::Kernel::kStreamed) return std::nullopt;
  return plan->choice.division;
}

}  // namespace llm_dist::kernels
