#include "src/device/cpu/cpu_backend.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "src/device/cpu/cgroup.h"
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

// Nothing where the file is not there or says "max".
std::optional<int64_t> read_bytes(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// The sum of the lines "name value" with one of `names`; proc/meminfo has a unit behind the value.
int64_t sum_of(const std::string& path, std::initializer_list<std::string_view> names) {
  std::ifstream file(path);
  int64_t sum = 0;
  std::string name, unit;
  for (int64_t value = 0; file >> name >> value; std::getline(file, unit)) {
    if (std::ranges::find(names, name) != names.end()) sum += value;
  }
  return sum;
}

struct CgroupFiles {
  std::string limit, usage;
  // Of memory.stat, with the groups below. Pages in use as shared memory are in neither.
  std::string_view inactive_file, active_file;
};

// Every level's limit binds, each with its own usage: the room may be least where the limit is not. The pages
// of files count as free, as in MemAvailable; those of a model that was read twice are the active ones.
void apply_cgroup(const std::vector<std::string>& folders, const CgroupFiles& files, MemoryInfo& info) {
  for (const std::string& folder : folders) {
    std::optional<int64_t> limit = read_bytes(folder + "/" + files.limit);
    if (!limit) continue;
    int64_t cached = sum_of(folder + "/memory.stat", {files.inactive_file, files.active_file});
    // At least 0: the files were not read at one moment.
    int64_t used = std::max<int64_t>(0, read_bytes(folder + "/" + files.usage).value_or(0) - cached);
    info.total_bytes = std::min(info.total_bytes, *limit);
    info.free_bytes = std::min(info.free_bytes, std::max<int64_t>(0, *limit - used));
  }
}

// RLIMIT_AS; nothing where there is none.
std::optional<int64_t> address_space_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

std::string why_not_mapped(int64_t bytes) {
  const std::string reason = std::strerror(errno);
  const std::optional<int64_t> limit = address_space_limit();
  return format("cannot map {} bytes of memory: {}{}",
                bytes,
                reason,
                limit ? format(" (ulimit -v allows this process {} KiB)", *limit / 1024) : "");
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
    if (data == MAP_FAILED) return resource_exhausted(why_not_mapped(bytes));
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

MemoryInfo process_memory_info(const std::string& root) {
  const std::string machine = root + "/proc/meminfo";
  MemoryInfo info{.free_bytes = sum_of(machine, {"MemAvailable:"}) * 1024,
                  .total_bytes = sum_of(machine, {"MemTotal:"}) * 1024};
  apply_cgroup(
      cgroup_folders("", root), {"memory.max", "memory.current", "inactive_file", "active_file"}, info);
  apply_cgroup(cgroup_folders("memory", root),
               {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"},
               info);
  return info;
}

MemoryInfo memory_of_rank(int num_ranks) {
  MemoryInfo info = process_memory_info();
  info.free_bytes /= num_ranks;
  info.total_bytes /= num_ranks;
  const std::optional<int64_t> limit = address_space_limit();
  if (!limit) return info;
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  info.total_bytes = std::min(info.total_bytes, *limit);
  info.free_bytes = std::min(info.free_bytes, std::max<int64_t>(0, *limit - pages * sysconf(_SC_PAGESIZE)));
  return info;
}

std::unique_ptr<Backend> make_cpu_backend(CpuBackendOptions options) {
  return std::make_unique<CpuBackend>(std::move(options));
}

}  // namespace llm_dist::device
