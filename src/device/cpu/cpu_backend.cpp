#include "src/device/cpu/cpu_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "src/device/cpu/cpu_event.h"
#include "src/device/cpu/cpu_stream.h"

namespace llm_dist::device {
namespace {

class CpuGraph : public Graph {
 public:
  explicit CpuGraph(std::vector<CpuTask> tasks) : tasks_(std::move(tasks)) {}
  void launch(Stream& stream) override {
    for (const CpuTask& task : tasks_) as_cpu(stream).enqueue(task);
  }

 private:
  std::vector<CpuTask> tasks_;
};

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "CPU";
}

int64_t read_bytes_or(const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : otherwise;  // "max" is no number: no limit
}

// "memory" controller's path of this process: v2 lines read "0::/path", v1 lines "5:memory:/path".
std::string cgroup_path(std::string_view controllers) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    size_t first = line.find(':');
    size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (std::string_view(line).substr(first + 1, second - first - 1) == controllers)
      return line.substr(second + 1);
  }
  return "";
}

struct CgroupFiles {
  std::string root, limit, usage, path;
};

// Every ancestor's limit binds; usage is compared at the level that binds.
void apply_cgroup(const CgroupFiles& files, MemoryInfo& info) {
  std::string path = files.path;
  while (true) {
    std::string folder = files.root + path;
    int64_t limit = read_bytes_or(folder + "/" + files.limit, std::numeric_limits<int64_t>::max());
    if (limit < info.total_bytes) {
      int64_t used = read_bytes_or(folder + "/" + files.usage, 0);
      info.total_bytes = limit;
      info.free_bytes = std::min(info.free_bytes, std::max<int64_t>(0, limit - used));
    }
    if (path.empty() || path == "/") return;
    path.resize(path.find_last_of('/'));
  }
}

int64_t meminfo_bytes(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (int64_t kib = 0; file >> name >> kib; std::getline(file, unit)) {
    if (name == key + ":") return kib * 1024;
  }
  return 0;
}

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(CpuBackendOptions options) : options_(std::move(options)) {}

  Device device() const override { return {}; }
  std::string description() const override {
    return cpu_model_name() + ", " + std::to_string(options_.threads) +
           (options_.threads == 1 ? " thread" : " threads");
  }

  Result<Buffer> allocate(int64_t bytes, MemoryKind kind) override {
    if (bytes == 0) return Buffer(this, nullptr, 0, kind);
    void* data =
        mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return resource_exhausted(format("cannot map {} bytes of memory", bytes));
    constexpr int64_t kHugePageBytes = 2 << 20;
    if (bytes >= kHugePageBytes) madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return Buffer(this, data, bytes, kind);
  }

  bool host_addressable() const override { return true; }
  std::unique_ptr<Stream> make_stream(const std::string& name) override {
    CpuStreamOptions options{.name = name};
    if (options_.before_task) {
      options.before_task = [hook = options_.before_task, name](uint64_t task) { hook(name, task); };
    }
    return std::make_unique<CpuStream>(std::move(options));
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CpuEvent>(); }
  Result<MemoryInfo> memory_info() const override { return process_memory_info(); }

  void begin_capture(Stream& stream) override { as_cpu(stream).begin_capture(); }
  Result<std::unique_ptr<Graph>> end_capture(Stream& stream) override {
    return std::unique_ptr<Graph>(std::make_unique<CpuGraph>(as_cpu(stream).end_capture()));
  }

 private:
  void release(void* data, int64_t bytes, MemoryKind) override { munmap(data, static_cast<size_t>(bytes)); }

  CpuBackendOptions options_;
};

}  // namespace

MemoryInfo process_memory_info() {
  MemoryInfo info{.free_bytes = meminfo_bytes("MemAvailable"), .total_bytes = meminfo_bytes("MemTotal")};
  apply_cgroup({"/sys/fs/cgroup", "memory.max", "memory.current", cgroup_path("")}, info);
  apply_cgroup(
      {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", cgroup_path("memory")},
      info);
  return info;
}

std::unique_ptr<Backend> make_cpu_backend(CpuBackendOptions options) {
  return std::make_unique<CpuBackend>(std::move(options));
}

}  // namespace llm_dist::device
