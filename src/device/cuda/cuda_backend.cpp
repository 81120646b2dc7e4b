#include "src/device/cuda/cuda_backend.h"

#include <cuda_runtime.h>

#include <cstdio>

#include "src/device/cuda/cuda_error.h"
#include "src/device/cuda/cuda_event.h"
#include "src/device/cuda/cuda_stream.h"
#include "src/device/cuda/timestamp.h"

namespace llm_dist::device {
namespace {

class CudaGraph : public Graph {
 public:
  explicit CudaGraph(cudaGraphExec_t executable) : executable_(executable) {}
  ~CudaGraph() override { (void)cudaGraphExecDestroy(executable_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void launch(Stream& stream) override {
    CudaStream& cuda = as_cuda(stream);
    if (cuda.enter()) cuda.check(cudaGraphLaunch(executable_, cuda.handle()), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t executable_;
};

// As nvidia-smi prints it: GPU-01234567-89ab-….
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    char hex[4];
    std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += hex;
  }
  return text;
}

class CudaBackend : public Backend {
 public:
  CudaBackend(int index, const cudaDeviceProp& properties)
      : index_(index), description_(format("{} ({})", properties.name, uuid_text(properties.uuid))) {}

  Device device() const override { return {DeviceType::kCuda, static_cast<int16_t>(index_)}; }
  std::string description() const override { return description_; }
  bool host_addressable() const override { return false; }
  bool prefers_graphs() const override { return true; }

  Result<Buffer> allocate(int64_t bytes, MemoryKind kind) override {
    if (bytes == 0) return Buffer(this, nullptr, 0, kind);
    RETURN_IF_ERROR(cuda_status(cudaSetDevice(index_), "cudaSetDevice"));
    auto size = static_cast<size_t>(bytes);
    void* data = nullptr;
    cudaError_t error = kind == MemoryKind::kPinned ? cudaHostAlloc(&data, size, cudaHostAllocPortable)
                                                    : cudaMalloc(&data, size);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();  // an allocation that failed leaves nothing behind
      return cuda_status(error, format("{} bytes of {} memory of {}", bytes, to_text(kind), description_));
    }
    Buffer buffer(this, data, bytes, kind);
    RETURN_IF_ERROR(clear(buffer));
    return buffer;
  }

  std::unique_ptr<Stream> make_stream(const std::string& name) override {
    return std::make_unique<CudaStream>(index_, name);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(index_); }

  Result<MemoryInfo> memory_info() const override {
    RETURN_IF_ERROR(cuda_status(cudaSetDevice(index_), "cudaSetDevice"));
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    RETURN_IF_ERROR(cuda_status(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
    return MemoryInfo{static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
  }

  void begin_capture(Stream& stream) override {
    CudaStream& cuda = as_cuda(stream);
    if (cuda.enter()) {
      cuda.check(cudaStreamBeginCapture(cuda.handle(), cudaStreamCaptureModeThreadLocal),
                 "cudaStreamBeginCapture");
    }
  }

  Result<std::unique_ptr<Graph>> end_capture(Stream& stream) override {
    CudaStream& cuda = as_cuda(stream);
    cudaGraph_t graph = nullptr;
    (void)cuda.enter();  // what was put off belongs to the graph
    RETURN_IF_ERROR(cuda_status(cudaStreamEndCapture(cuda.handle(), &graph), "cudaStreamEndCapture"));
    RETURN_IF_ERROR(cuda.error());
    cudaGraphExec_t executable = nullptr;
    cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
    (void)cudaGraphDestroy(graph);
    RETURN_IF_ERROR(cuda_status(error, "cudaGraphInstantiate"));
    return std::unique_ptr<Graph>(std::make_unique<CudaGraph>(executable));
  }

 private:
  static const char* to_text(MemoryKind kind) { return kind == MemoryKind::kPinned ? "pinned" : "device"; }

  static Status clear(const Buffer& buffer) {
    RETURN_IF_ERROR(
        cuda_status(cudaMemset(buffer.data(), 0, static_cast<size_t>(buffer.bytes())), "cudaMemset"));
    // Our streams do not wait for the default one.
    return cuda_status(cudaDeviceSynchronize(), "clearing memory");
  }

  void release(void* data, int64_t, MemoryKind kind) override {
    (void)(kind == MemoryKind::kPinned ? cudaFreeHost(data) : cudaFree(data));
  }

  int index_;
  std::string description_;
};

// All kernels are built for the same architectures, so that one of them answers for all.
Status check_code_for(const cudaDeviceProp& gpu) {
  const cudaError_t error = load_timestamp();
  if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidDeviceFunction &&
      error != cudaErrorUnsupportedPtxVersion)
    return cuda_status(error, "loading a kernel");
  (void)cudaGetLastError();
  return failed_precondition(
      format("{} has compute capability {}.{}, and this build has code for {} alone: build it with -D "
             "LLM_DIST_CUDA_ARCHITECTURES={}{}",
             gpu.name,
             gpu.major,
             gpu.minor,
             LLM_DIST_CUDA_ARCHITECTURES,
             gpu.major,
             gpu.minor));
}

}  // namespace

int visible_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

Result<std::unique_ptr<Backend>> make_cuda_backend(int index) {
  int count = visible_cuda_devices();
  if (index < 0 || index >= count) {
    return failed_precondition(format("GPU {} is wanted and this process sees {}", index, count));
  }
  cudaDeviceProp properties{};
  RETURN_IF_ERROR(cuda_status(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
  RETURN_IF_ERROR(cuda_status(cudaSetDevice(index), "cudaSetDevice"));
  RETURN_IF_ERROR(check_code_for(properties));
  return std::unique_ptr<Backend>(std::make_unique<CudaBackend>(index, properties));
}

}  // namespace llm_dist::device
