#include "kernels/cuda/tensor_map.h"

#include "src/device/cuda/driver_function.h"

namespace llm_dist::kernels {
namespace {

CUtensorMapDataType element_type(DType dtype) {
  if (dtype == DType::kF8E4M3) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

}  // namespace

int box_columns(DType dtype) { return static_cast<int>(128 / dtype_bytes(dtype)); }

TensorMapShape rows_of(
    DType dtype, const void* data, int64_t columns, int64_t rows, int64_t stride, int box_rows) {
  return {.dtype = dtype,
          .data = data,
          .dimensions = 2,
          .sizes = {columns, rows},
          .strides = {stride},
          .box = {box_columns(dtype), box_rows}};
}

cudaError_t TensorMapEncoder::find() {
  return device::find_driver_function("cuTensorMapEncodeTiled", encode_);
}

cudaError_t TensorMapEncoder::encode(const TensorMapShape& shape, CUtensorMap& map) const {
  cuuint64_t sizes[5] = {};
  cuuint64_t strides[4] = {};  // in bytes
  cuuint32_t box[5] = {};
  const cuuint32_t every[5] = {1, 1, 1, 1, 1};
  for (size_t i = 0; i < 5; ++i) {
    sizes[i] = static_cast<cuuint64_t>(shape.sizes[i]);
    box[i] = static_cast<cuuint32_t>(shape.box[i]);
    if (i < 4) strides[i] = static_cast<cuuint64_t>(shape.strides[i] * dtype_bytes(shape.dtype));
  }
  // L2 fetches 128 bytes, as much as a row of a box has. With 256, boxes of weights came 3 to
  // 10 % slower (docs/kernels.md).
  const CUresult result =
      reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode_)(&map,
                                                                   element_type(shape.dtype),
                                                                   static_cast<cuuint32_t>(shape.dimensions),
                                                                   const_cast<void*>(shape.data),
                                                                   sizes,
                                                                   strides,
                                                                   box,
                                                                   every,
                                                                   CU_TENSOR_MAP_INTERLEAVE_NONE,
                                                                   CU_TENSOR_MAP_SWIZZLE_128B,
                                                                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace llm_dist::kernels
