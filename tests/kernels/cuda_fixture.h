// What the CUDA ops' tests share: the module, a GPU beside the CPU, and tensors that stand on both.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <thread>

#include "tests/device/cuda_module.h"
#include "tests/kernels/op_fixture.h"

namespace llm_dist::kernels {

// The same tensor for the CPU's op and for the GPU's.
struct Twin {
  std::shared_ptr<TestTensor> host;
  std::shared_ptr<device::Buffer> buffer;
  Tensor cpu;
  Tensor gpu;

  // Views of both, cut alike.
  template <typename Cut>
  Twin cut(Cut&& how) const {
    return {host, buffer, how(cpu), how(gpu)};
  }
};

struct Heads {
  int32_t q, kv;
  int64_t dim;
};

class CudaOpTest : public testing::Test {
 protected:
  void SetUp() override {
    auto module = cuda_module();
    ASSERT_TRUE(module.ok()) << module.status().to_string();
    module_ = *module;
    if (module_->visible_devices() == 0) GTEST_SKIP() << "no GPU";
    cpu_backend_ = device::make_cpu_backend({.threads = options_.threads});
    gpu_backend_ = module_->make_backend(0).value();
    cpu_stream_ = cpu_backend_->make_stream("cpu");
    gpu_stream_ = gpu_backend_->make_stream("gpu");
    cpu_state_ = cpu_ops().make_state(*cpu_backend_, options_).value();
    gpu_state_ = module_->ops->make_state(*gpu_backend_, options_).value();
  }

  Twin twin_of(DType dtype, std::initializer_list<int64_t> shape, const std::vector<double>& values) {
    return twin_of(std::make_shared<TestTensor>(dtype, shape, values));
  }
  Twin twin_of(std::shared_ptr<TestTensor> host) {
    Twin twin;
    twin.host = std::move(host);
    twin.cpu = twin.host->view();
    twin.buffer = std::make_shared<device::Buffer>(
        gpu_backend_->allocate(twin.cpu.bytes() + 64, device::MemoryKind::kDevice).value());
    twin.gpu = twin.cpu;
    twin.gpu.data = twin.buffer->data();
    twin.gpu.device = gpu_backend_->device();
    upload(twin);
    return twin;
  }
  Twin random_twin(DType dtype, std::initializer_list<int64_t> shape, double scale = 1) {
    auto host = std::make_shared<TestTensor>(dtype, shape);
    normals_.fill(host->view(), scale);
    return twin_of(std::move(host));
  }
  // Poisoned, so that an element nobody wrote is seen.
  Twin output_twin(DType dtype, std::initializer_list<int64_t> shape) {
    auto host = std::make_shared<TestTensor>(dtype, shape);
    for (int64_t i = 0; i < host->view().numel(); ++i) host->set(i, dtype == DType::kI32 ? -7777 : 7777);
    return twin_of(std::move(host));
  }
  Twin ints(const std::vector<int32_t>& values) {
    return twin_of(DType::kI32,
                   {static_cast<int64_t>(values.size())},
                   std::vector<double>(values.begin(), values.end()));
  }

  void upload(const Twin& twin) {
    gpu_stream_->copy(twin.gpu, twin.cpu);
    synchronize();
  }
  std::vector<std::byte> download(const Twin& twin) {
    std::vector<std::byte> bytes(static_cast<size_t>(twin.cpu.bytes()));
    Tensor to = twin.cpu;
    to.data = bytes.data();
    gpu_stream_->copy(to, twin.gpu);
    synchronize();
    return bytes;
  }
  void synchronize() {
    for (device::Stream* stream : {cpu_stream_.get(), gpu_stream_.get()}) {
      const Status status = stream->synchronize(Deadline::after_seconds(60));
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }

  bool is_hopper() const {
    const std::string name = gpu_backend_->description();
    return name.find("NVIDIA H") == 0 || name.find("NVIDIA GH") == 0;
  }

  // make(pick) builds the params from twins: pick(twin) is the tensor of the backend that runs.
  template <typename Params, typename Make>
  void run_both(Op<Params> OpTable::* op, Make&& make) {
    (cpu_ops().*op)(*cpu_state_, *cpu_stream_, make([](const Twin& twin) { return twin.cpu; }));
    (module_->ops->*op)(*gpu_state_, *gpu_stream_, make([](const Twin& twin) { return twin.gpu; }));
    synchronize();
  }

  void expect_same(const Twin& twin, double tolerance) {
    const std::vector<std::byte> bytes = download(twin);
    Tensor from_gpu = twin.cpu;
    from_gpu.data = const_cast<std::byte*>(bytes.data());
    for (int64_t i = 0; i < twin.cpu.numel(); ++i) {
      const double expected = element(twin.cpu, i);
      ASSERT_NEAR(expected, element(from_gpu, i), tolerance * (1 + std::abs(expected)))
          << "element " << i << " of " << twin.gpu.to_string();
    }
  }
  // Rounding differs where sums are taken in another order: two units in the last place.
  static double tolerance(DType dtype) { return dtype == DType::kF32 ? 2e-5 : 2 * rounding_of(dtype); }

  // Shards of the tests that run beside each other (GTEST_TOTAL_SHARDS) share the processors: the CPU's
  // threads wait for each other in turns of their own, and more of them than processors come to nothing.
  static int threads_of_shard() {
    const char* shards = std::getenv("GTEST_TOTAL_SHARDS");
    const int beside = shards == nullptr ? 1 : std::max(1, std::atoi(shards));
    return std::max(2, static_cast<int>(std::thread::hardware_concurrency()) / beside);
  }
  const OpStateOptions options_{.threads = threads_of_shard(),
                                .max_tokens = 8192,
                                .max_features = 32768,
                                .max_sequences = 64,
                                .vocab_size = 130000};
  const CudaModule* module_ = nullptr;
  std::mt19937_64 random_{11};
  Normals normals_{12};
  std::unique_ptr<device::Backend> cpu_backend_;
  std::unique_ptr<device::Backend> gpu_backend_;
  std::unique_ptr<device::Stream> cpu_stream_;
  std::unique_ptr<device::Stream> gpu_stream_;
  std::unique_ptr<OpState> cpu_state_;
  std::unique_ptr<OpState> gpu_state_;
};

}  // namespace llm_dist::kernels
