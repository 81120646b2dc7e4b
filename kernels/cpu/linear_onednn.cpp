#include "kernels/cpu/linear_onednn.h"

#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>

// OpenMP's own; its header lies among gcc's private ones, where clang-tidy does not look.
extern "C" void omp_set_num_threads(int threads) noexcept;

namespace llm_dist::kernels {
namespace {

using DataType = dnnl::memory::data_type;

DataType data_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return DataType::bf16;
    case DType::kF16: return DataType::f16;
    default: CHECK(dtype == DType::kF32, "a matmul in {}", dtype); return DataType::f32;
  }
}

using Key = std::tuple<DType, DType, int64_t, int64_t, int64_t, int64_t, int64_t, bool>;

Key key_of(const DenseMatmulCall& call) {
  return {call.dtype,
          call.out_dtype,
          call.m,
          call.n,
          call.k,
          call.x_stride,
          call.out_stride,
          call.bias != nullptr};
}

// A primitive and the memory objects that its arguments are pointed at, so that a call makes nothing new.
struct Cached {
  dnnl::matmul primitive;
  dnnl::memory x, w, bias, out;
  std::unordered_map<int, dnnl::memory> args;
};

// Nothing where oneDNN has no kernel for the call.
std::optional<Cached> make(const dnnl::engine& engine, const DenseMatmulCall& call) try {
  const DataType in = data_type(call.dtype);
  dnnl::memory::desc x({call.m, call.k}, in, dnnl::memory::dims{call.x_stride, 1});
  dnnl::memory::desc w({call.k, call.n}, in, dnnl::memory::dims{1, call.k});
  dnnl::memory::desc out({call.m, call.n}, data_type(call.out_dtype), dnnl::memory::dims{call.out_stride, 1});
  dnnl::memory::desc bias;
  if (call.bias != nullptr) bias = dnnl::memory::desc({1, call.n}, in, dnnl::memory::dims{call.n, 1});
  dnnl::matmul::primitive_desc desc = call.bias != nullptr
                                          ? dnnl::matmul::primitive_desc(engine, x, w, bias, out)
                                          : dnnl::matmul::primitive_desc(engine, x, w, out);
  if (std::string_view(desc.impl_info_str()).starts_with("ref")) return std::nullopt;
  Cached cached{.primitive = dnnl::matmul(desc),
                .x = dnnl::memory(x, engine, nullptr),
                .w = dnnl::memory(w, engine, nullptr),
                .bias = {},
                .out = dnnl::memory(out, engine, nullptr),
                .args = {}};
  cached.args = {{DNNL_ARG_SRC, cached.x}, {DNNL_ARG_WEIGHTS, cached.w}, {DNNL_ARG_DST, cached.out}};
  if (call.bias != nullptr) {
    cached.bias = dnnl::memory(bias, engine, nullptr);
    cached.args.emplace(DNNL_ARG_BIAS, cached.bias);
  }
  return cached;
} catch (const dnnl::error& error) {
  if (error.status != dnnl_unimplemented) throw;
  return std::nullopt;
}

}  // namespace

struct DenseMatmul::Impl {
  int threads;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Key, std::optional<Cached>> cache;
};

DenseMatmul::DenseMatmul(int threads) : impl_(new Impl{.threads = threads, .cache = {}}) {}
DenseMatmul::~DenseMatmul() = default;

Result<bool> DenseMatmul::run(const DenseMatmulCall& call) try {
  omp_set_num_threads(impl_->threads);  // of this thread only; oneDNN sizes its teams by it
  auto found = impl_->cache.find(key_of(call));
  if (found == impl_->cache.end()) {
    found = impl_->cache.emplace(key_of(call), make(impl_->engine, call)).first;
  }
  if (!found->second) return false;
  Cached& cached = *found->second;
  cached.x.set_data_handle(const_cast<void*>(call.x));
  cached.w.set_data_handle(const_cast<void*>(call.w));
  cached.out.set_data_handle(call.out);
  if (call.bias != nullptr) cached.bias.set_data_handle(const_cast<void*>(call.bias));
  cached.primitive.execute(impl_->stream, cached.args);
  impl_->stream.wait();
  return true;
} catch (const dnnl::error& error) {
  return internal_error(format("oneDNN matmul {} × {} × {}: {}", call.m, call.n, call.k, error.message));
}

}  // namespace llm_dist::kernels
