// What one rank sees of its host, and how ranks tell each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace llm_dist::launch {

struct InterfaceFact {
  std::string name;
  std::string address;
  int64_t megabits = 0;  // 0: not known
};

struct FileFact {
  std::string path;  // empty: not asked about
  bool exists = false;
  bool writable = false;
  std::string file_system;  // "ext4", "nfs", "lustre"…
  int64_t bytes = 0;        // of a file, or of the files of a folder
  int64_t free_bytes = 0;   // of its file system
};

struct RankFacts {
  int rank = 0;
  std::string host;
  int local_rank = 0;
  int local_size = 1;
  std::string version;      // of llm-dist
  std::string mpi;          // "Open MPI v4.1.4"; empty: no module or no library
  std::string mpi_missing;  // why
  std::vector<InterfaceFact> interfaces;
  int64_t shm_free_bytes = 0;  // /dev/shm; −1: none
  int64_t memlock_bytes = 0;   // soft limit; −1: unlimited
  int64_t open_files = 0;      // soft limit
  int64_t memory_free_bytes = 0;
  int64_t one_rank_bytes = 0;      // of that, the most for one rank, which ulimit -v may bound
  int64_t memory_total_bytes = 0;  // the cgroup's limit where it is lower than the machine's
  std::vector<int> cpus;           // that the launcher lets it use
  int machine_cpus = 1;
  double quota_cpus = 0;  // the cgroup's; 0: none
  bool bf16 = false;
  int gpus_visible = 0;
  std::string gpu_missing;  // why there is none
  std::string gpu_trouble;  // why the rank's cannot be used
  FileFact model;
  FileFact cache;
  int64_t allocated_gpus = 0;  // by Slurm, on this node
  std::string idle;            // what is allocated and not used (launch/idle.h)
};

// Of this process; taken before it binds itself. `model` may be empty. Rank and host are filled in later.
RankFacts gather_facts(const std::string& model);

std::string facts_to_text(const RankFacts& facts);
RankFacts facts_from_text(const std::string& text);

}  // namespace llm_dist::launch
