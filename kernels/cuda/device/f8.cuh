// Codes of f8_e4m3 to 16-bit elements, exactly.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace llm_dist::kernels {

// Two codes whose bits stand where bf16 has them are 2¹²⁰ times too small.
__device__ inline uint32_t enlarge_pair(uint32_t small) {
  constexpr uint32_t kFactor = 0x7b807b80u;  // 2¹²⁰, twice
  const __nv_bfloat162 pair = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&small),
                                      *reinterpret_cast<const __nv_bfloat162*>(&kFactor));
  return *reinterpret_cast<const uint32_t*>(&pair);
}
// Two codes in the upper halves of their elements, above anything.
__device__ inline uint32_t widen_apart(uint32_t apart) {
  return enlarge_pair((apart & 0x80008000u) | ((apart >> 4) & 0x07f007f0u));
}

// widen_pair<kHalf>(T(), codes): the two codes in the lower (0) or upper (1) half to two elements, in their
// order.
template <int kHalf = 0>
__device__ inline uint32_t widen_pair(__nv_bfloat16, uint32_t codes) {
  return widen_apart(__byte_perm(codes, 0, kHalf == 0 ? 0x1404 : 0x3424));
}
template <int kHalf = 0>
__device__ inline uint32_t widen_pair(__half, uint32_t codes) {
  const __half2_raw pair =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes >> (16 * kHalf)), __NV_E4M3);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// widen_four(T(), codes): four codes to four elements, in their order.
__device__ inline uint2 widen_four(__nv_bfloat16, uint32_t codes) {
  // An element's upper byte, sign and three bits of the exponent, and its lower one: of all four at once.
  const uint32_t upper = (codes & 0x80808080u) | ((codes >> 4) & 0x07070707u);
  const uint32_t lower = (codes << 4) & 0xf0f0f0f0u;
  return {enlarge_pair(__byte_perm(lower, upper, 0x5140)), enlarge_pair(__byte_perm(lower, upper, 0x7362))};
}
__device__ inline uint2 widen_four(__half, uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  // The instruction takes either half of a register, which a shift in front of it would hide.
  uint2 wide;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, "
      "high; }"
      : "=r"(wide.x), "=r"(wide.y)
      : "r"(codes));
  return wide;
#else
  return {widen_pair<0>(__half(), codes), widen_pair<1>(__half(), codes)};
#endif
}

}  // namespace llm_dist::kernels
