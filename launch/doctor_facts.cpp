#include "launch/doctor_facts.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "comm/host/own_address.h"
#include "comm/mpi_loader.h"
#include "launch/device_choice.h"
#include "launch/placement.h"
#include "src/base/cache_folder.h"
#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::launch {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Of statfs(2), for the file systems that clusters have; others show as a number.
struct FileSystemName {
  uint32_t magic;
  const char* name;
};
constexpr FileSystemName kFileSystems[] = {{0xEF53, "ext4"},
                                           {0x58465342, "xfs"},
                                           {0x9123683E, "btrfs"},
                                           {0x01021994, "tmpfs"},
                                           {0x794c7630, "overlay"},
                                           {0x6969, "nfs"},
                                           {0x0BD00BD0, "lustre"},
                                           {0x47504653, "gpfs"},
                                           {0x19830326, "beegfs"},
                                           {0x00c36400, "ceph"},
                                           {0xFF534D42, "cifs"},
                                           {0x65735546, "fuse"},
                                           {0x2fc12fc1, "zfs"},
                                           {0x01021997, "9p"}};

std::string file_system_of(const std::string& path, int64_t* free_bytes) {
  struct statfs info{};
  if (::statfs(path.c_str(), &info) != 0) return "";
  *free_bytes = static_cast<int64_t>(info.f_bavail) * info.f_bsize;
  for (const FileSystemName& known : kFileSystems)
    if (known.magic == static_cast<uint32_t>(info.f_type)) return known.name;
  return format("type {}", info.f_type);
}

int64_t bytes_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return static_cast<int64_t>(fs::file_size(path, error));
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path, error))
    if (entry.is_regular_file(error)) bytes += static_cast<int64_t>(entry.file_size(error));
  return bytes;
}

FileFact file_fact(const std::string& path) {
  FileFact fact{.path = path};
  if (path.empty()) return fact;
  fact.exists = ::access(path.c_str(), R_OK) == 0;
  if (!fact.exists) return fact;
  fact.writable = ::access(path.c_str(), W_OK) == 0;
  fact.bytes = bytes_of(path);
  fact.file_system = file_system_of(path, &fact.free_bytes);
  return fact;
}

// By its first address.
std::vector<InterfaceFact> interface_facts() {
  std::vector<InterfaceFact> facts;
  for (const comm::Interface& one : comm::interfaces()) {
    bool known = std::ranges::any_of(facts, [&](const InterfaceFact& fact) { return fact.name == one.name; });
    if (one.loopback || known) continue;
    InterfaceFact fact{.name = one.name, .address = one.address};
    std::ifstream(format("/sys/class/net/{}/speed", fact.name)) >> fact.megabits;
    fact.megabits = std::max<int64_t>(0, fact.megabits);
    facts.push_back(std::move(fact));
  }
  return facts;
}

int64_t soft_limit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<int64_t>(limit.rlim_cur);
}

int64_t shm_free() {
  struct statvfs info{};
  if (::statvfs("/dev/shm", &info) != 0) return -1;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

int64_t slurm_number(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? 0 : std::atoll(value);
}

}  // namespace

RankFacts gather_facts(const std::string& model) {
  RankFacts facts;
  facts.version = LLM_DIST_VERSION;
  auto mpi = comm::mpi_library_version();
  (mpi.ok() ? facts.mpi : facts.mpi_missing) = mpi.ok() ? *mpi : mpi.status().message();
  facts.interfaces = interface_facts();
  facts.shm_free_bytes = shm_free();
  facts.memlock_bytes = soft_limit(RLIMIT_MEMLOCK);
  facts.open_files = soft_limit(RLIMIT_NOFILE);
  device::MemoryInfo memory = device::process_memory_info();
  facts.memory_free_bytes = memory.free_bytes;
  facts.one_rank_bytes = device::memory_of_rank(1).free_bytes;
  facts.memory_total_bytes = memory.total_bytes;
  facts.cpus = allowed_cpus();
  facts.machine_cpus = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  facts.machine_cpus = std::max(facts.machine_cpus, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  facts.quota_cpus = quota_cpus();
  __builtin_cpu_init();
  facts.bf16 = __builtin_cpu_supports("avx512bf16") != 0;
  auto gpus = visible_gpus();
  if (gpus.ok()) facts.gpus_visible = *gpus;
  if (!gpus.ok()) facts.gpu_missing = gpus.status().message();
  facts.model = file_fact(model);
  facts.cache = file_fact(user_cache_folder());
  facts.allocated_gpus = slurm_number("SLURM_GPUS_ON_NODE");
  return facts;
}

namespace {

json to_json(const FileFact& fact) {
  return {{"path", fact.path},
          {"exists", fact.exists},
          {"writable", fact.writable},
          {"file_system", fact.file_system},
          {"bytes", fact.bytes},
          {"free_bytes", fact.free_bytes}};
}

FileFact file_from_json(const json& fields) {
  return {.path = fields.at("path"),
          .exists = fields.at("exists"),
          .writable = fields.at("writable"),
          .file_system = fields.at("file_system"),
          .bytes = fields.at("bytes"),
          .free_bytes = fields.at("free_bytes")};
}

}  // namespace

std::string facts_to_text(const RankFacts& facts) {
  json interfaces = json::array();
  for (const InterfaceFact& fact : facts.interfaces)
    interfaces.push_back({{"name", fact.name}, {"address", fact.address}, {"megabits", fact.megabits}});
  json fields = {{"rank", facts.rank},
                 {"host", facts.host},
                 {"local_rank", facts.local_rank},
                 {"local_size", facts.local_size},
                 {"version", facts.version},
                 {"mpi", facts.mpi},
                 {"mpi_missing", facts.mpi_missing},
                 {"interfaces", interfaces},
                 {"shm_free_bytes", facts.shm_free_bytes},
                 {"memlock_bytes", facts.memlock_bytes},
                 {"open_files", facts.open_files},
                 {"memory_free_bytes", facts.memory_free_bytes},
                 {"one_rank_bytes", facts.one_rank_bytes},
                 {"memory_total_bytes", facts.memory_total_bytes},
                 {"cpus", facts.cpus},
                 {"machine_cpus", facts.machine_cpus},
                 {"quota_cpus", facts.quota_cpus},
                 {"bf16", facts.bf16},
                 {"gpus_visible", facts.gpus_visible},
                 {"gpu_missing", facts.gpu_missing},
                 {"gpu_trouble", facts.gpu_trouble},
                 {"model", to_json(facts.model)},
                 {"cache", to_json(facts.cache)},
                 {"allocated_gpus", facts.allocated_gpus},
                 {"idle", facts.idle}};
  return fields.dump(-1, ' ', false, json::error_handler_t::replace);
}

RankFacts facts_from_text(const std::string& text) {
  json fields = json::parse(text);
  RankFacts facts{.rank = fields.at("rank"),
                  .host = fields.at("host"),
                  .local_rank = fields.at("local_rank"),
                  .local_size = fields.at("local_size"),
                  .version = fields.at("version"),
                  .mpi = fields.at("mpi"),
                  .mpi_missing = fields.at("mpi_missing"),
                  .shm_free_bytes = fields.at("shm_free_bytes"),
                  .memlock_bytes = fields.at("memlock_bytes"),
                  .open_files = fields.at("open_files"),
                  .memory_free_bytes = fields.at("memory_free_bytes"),
                  .one_rank_bytes = fields.at("one_rank_bytes"),
                  .memory_total_bytes = fields.at("memory_total_bytes"),
                  .cpus = fields.at("cpus").get<std::vector<int>>(),
                  .machine_cpus = fields.at("machine_cpus"),
                  .quota_cpus = fields.at("quota_cpus"),
                  .bf16 = fields.at("bf16"),
                  .gpus_visible = fields.at("gpus_visible"),
                  .gpu_missing = fields.at("gpu_missing"),
                  .gpu_trouble = fields.at("gpu_trouble"),
                  .model = file_from_json(fields.at("model")),
                  .cache = file_from_json(fields.at("cache")),
                  .allocated_gpus = fields.at("allocated_gpus"),
                  .idle = fields.at("idle")};
  for (const json& entry : fields.at("interfaces"))
    facts.interfaces.push_back(
        {.name = entry.at("name"), .address = entry.at("address"), .megabits = entry.at("megabits")});
  return facts;
}

}  // namespace llm_dist::launch
