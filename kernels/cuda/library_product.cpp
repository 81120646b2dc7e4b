#include "kernels/cuda/library_product.h"

#include "src/base/check.h"
#include "src/base/format.h"

namespace llm_dist::kernels {
namespace {

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return CUDA_R_32F;
    case DType::kF16: return CUDA_R_16F;
    case DType::kBF16: return CUDA_R_16BF;
    case DType::kF8E4M3: return CUDA_R_8F_E4M3;
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

Status blas_status(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return ok_status();
  return internal_error(format("{}: {}", what, cublasLtGetStatusString(status)));
}

LibraryProduct::~LibraryProduct() {
  for (cublasLtMatrixLayout_t layout : {w_, x_, y_}) {
    if (layout != nullptr) (void)cublasLtMatrixLayoutDestroy(layout);
  }
  if (operation_ != nullptr) (void)cublasLtMatmulDescDestroy(operation_);
}

Status LibraryProduct::describe(const MatmulShape& shape) {
  RETURN_IF_ERROR(blas_status(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
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
  if (shape.f8_weight) {
    for (auto attribute : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
      RETURN_IF_ERROR(set(attribute, int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F}));
  }
  const DType in = shape.f8_weight ? DType::kF8E4M3 : shape.in;
  RETURN_IF_ERROR(layout(&w_, in, shape.k, shape.n, shape.k));
  RETURN_IF_ERROR(layout(&x_, in, shape.k, shape.m, shape.f8_weight ? shape.k : shape.x_stride));
  return layout(&y_, shape.out, shape.n, shape.m, shape.gated ? shape.n : shape.y_stride);
}

Status LibraryProduct::point_to(const MatmulShape& shape,
                                const MatmulOperands& operands,
                                const float* x_scales) {
  if (shape.has_bias) RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias));
  if (!shape.f8_weight) return ok_status();
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.w_scales));
  return set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scales);
}

Result<std::vector<cublasLtMatmulAlgo_t>> LibraryProduct::offers(cublasLtHandle_t handle,
                                                                 const MatmulShape& shape,
                                                                 int64_t workspace_bytes,
                                                                 int most) const {
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
  std::vector<cublasLtMatmulHeuristicResult_t> offered(static_cast<size_t>(most));
  int found = 0;
  cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, operation_, w_, x_, y_, y_, preference.handle(), most, offered.data(), &found);
  if (status == CUBLAS_STATUS_SUCCESS && found == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
  RETURN_IF_ERROR(blas_status(
      status, format("a kernel for {}×{}×{} {} to {}", shape.m, shape.n, shape.k, shape.in, shape.out)));
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  algorithms.reserve(static_cast<size_t>(found));
  for (int i = 0; i < found; ++i) algorithms.push_back(offered[static_cast<size_t>(i)].algo);
  return algorithms;
}

bool LibraryProduct::takes(cublasLtHandle_t handle,
                           const cublasLtMatmulAlgo_t& algorithm,
                           int64_t workspace_bytes) const {
  cublasLtMatmulHeuristicResult_t checked{};
  cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, operation_, w_, x_, y_, y_, &algorithm, &checked);
  return status == CUBLAS_STATUS_SUCCESS && checked.state == CUBLAS_STATUS_SUCCESS &&
         checked.workspaceSize <= static_cast<size_t>(workspace_bytes);
}

Status LibraryProduct::multiply(cublasLtHandle_t handle,
                                const cublasLtMatmulAlgo_t& algorithm,
                                const MatmulOperands& operands,
                                const Memory& memory,
                                cudaStream_t stream) const {
  const float one = 1.0f;
  const float zero = 0.0f;
  return blas_status(cublasLtMatmul(handle,
                                    operation_,
                                    &one,
                                    operands.w,
                                    w_,
                                    operands.x,
                                    x_,
                                    &zero,
                                    operands.y,
                                    y_,
                                    operands.y,
                                    y_,
                                    &algorithm,
                                    memory.workspace,
                                    static_cast<size_t>(memory.workspace_bytes),
                                    stream),
                     "cublasLtMatmul");
}

}  // namespace llm_dist::kernels
