#include "kernels/cuda/matmul.h"

namespace llm_dist::kernels {
namespace {

Status blas_status(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return ok_status();
  return internal_error(format("{}: {}", what, cublasLtGetStatusString(status)));
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return CUDA_R_32F;
    case DType::kF16: return CUDA_R_16F;
    case DType::kBF16: return CUDA_R_16BF;
    default: CHECK(false, "a matrix product in {}", dtype);
  }
  return CUDA_R_32F;
}

class Preference {
 public:
  Preference() { CHECK(cublasLtMatmulPreferenceCreate(&handle_) == CUBLAS_STATUS_SUCCESS); }
  ~Preference() { (void)cublasLtMatmulPreferenceDestroy(handle_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  template <typename T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    CHECK(cublasLtMatmulPreferenceSetAttribute(handle_, attribute, &value, sizeof value) ==
          CUBLAS_STATUS_SUCCESS);
  }
  cublasLtMatmulPreference_t handle() const { return handle_; }

 private:
  cublasLtMatmulPreference_t handle_ = nullptr;
};

}  // namespace

// cuBLASLt thinks in columns: yᵀ (n × m) = op(W) (n × k) · xᵀ (k × m), where W as it lies in memory is k × n.
struct Matmul::Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t y = nullptr;
  cublasLtMatmulHeuristicResult_t choice{};

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (cublasLtMatrixLayout_t layout : {w, x, y}) {
      if (layout != nullptr) (void)cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation != nullptr) (void)cublasLtMatmulDescDestroy(operation);
  }

  template <typename T>
  Status set(cublasLtMatmulDescAttributes_t attribute, T value) {
    return blas_status(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value),
                       "cublasLtMatmulDescSetAttribute");
  }
  Status describe(const MatmulShape& shape);
  Status choose(cublasLtHandle_t handle, const MatmulShape& shape, int64_t workspace_bytes);
};

Status Matmul::Plan::describe(const MatmulShape& shape) {
  RETURN_IF_ERROR(blas_status(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                              "cublasLtMatmulDescCreate"));
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  if (shape.has_bias) {
    RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(shape.in)));
  }
  auto layout = [](cublasLtMatrixLayout_t* made, DType dtype, int64_t rows, int64_t columns, int64_t stride) {
    return blas_status(
        cublasLtMatrixLayoutCreate(
            made, data_type(dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride),
        "cublasLtMatrixLayoutCreate");
  };
  RETURN_IF_ERROR(layout(&w, shape.in, shape.k, shape.n, shape.k));
  RETURN_IF_ERROR(layout(&x, shape.in, shape.k, shape.m, shape.x_stride));
  return layout(&y, shape.out, shape.n, shape.m, shape.y_stride);
}

Status Matmul::Plan::choose(cublasLtHandle_t handle, const MatmulShape& shape, int64_t workspace_bytes) {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
  // Sums of parts of k are added up in float: in the output's 16 bits they would cost accuracy.
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                         CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                         CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                         CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    preference.set(attribute, static_cast<uint32_t>(shape.alignment));
  }
  int found = 0;
  cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, operation, w, x, y, y, preference.handle(), 1, &choice, &found);
  if (status == CUBLAS_STATUS_SUCCESS && found == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
  return blas_status(
      status, format("a kernel for {}×{}×{} {} to {}", shape.m, shape.n, shape.k, shape.in, shape.out));
}

Matmul::Matmul(cublasLtHandle_t handle, void* workspace, int64_t workspace_bytes)
    : handle_(handle), workspace_(workspace), workspace_bytes_(workspace_bytes) {}

Matmul::~Matmul() {
  plans_.clear();
  (void)cublasLtDestroy(handle_);
}

Result<std::unique_ptr<Matmul>> Matmul::make(void* workspace, int64_t workspace_bytes) {
  cublasLtHandle_t handle = nullptr;
  RETURN_IF_ERROR(blas_status(cublasLtCreate(&handle), "cublasLtCreate"));
  return std::unique_ptr<Matmul>(new Matmul(handle, workspace, workspace_bytes));
}

Result<const Matmul::Plan*> Matmul::plan_for(const MatmulShape& shape) {
  auto found = plans_.find(shape);
  if (found != plans_.end()) return found->second.get();
  auto plan = std::make_unique<Plan>();
  RETURN_IF_ERROR(plan->describe(shape));
  RETURN_IF_ERROR(plan->choose(handle_, shape, workspace_bytes_));
  return plans_.emplace(shape, std::move(plan)).first->second.get();
}

void Matmul::run(const MatmulShape& shape, const MatmulOperands& operands, device::CudaStream& stream) {
  auto plan = plan_for(shape);
  Status status = plan.status();
  if (status.ok() && shape.has_bias) {
    // The pointer is an argument of the call, though it travels in the description.
    status = blas_status(
        cublasLtMatmulDescSetAttribute(
            (*plan)->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias, sizeof operands.bias),
        "the bias");
  }
  if (status.ok()) {
    const float one = 1.0f;
    const float zero = 0.0f;
    const Plan& p = **plan;
    status = blas_status(cublasLtMatmul(handle_,
                                        p.operation,
                                        &one,
                                        operands.w,
                                        p.w,
                                        operands.x,
                                        p.x,
                                        &zero,
                                        operands.y,
                                        p.y,
                                        operands.y,
                                        p.y,
                                        &p.choice.algo,
                                        workspace_,
                                        static_cast<size_t>(workspace_bytes_),
                                        stream.handle()),
                         "cublasLtMatmul");
  }
  if (!status.ok()) stream.fail(std::move(status));
}

}  // namespace llm_dist::kernels
