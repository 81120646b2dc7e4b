// A disk in memory for SQLite that can crash: what was not synced is then lost, kept or torn, sector by
// sector.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

struct sqlite3_vfs;

namespace llm_dist::cluster::testing {

// A file as the disk and as the kernel's cache hold it.
struct CrashFile {
  struct Write {
    int64_t offset;     // of `bytes`, or the new size
    std::string bytes;  // empty: a truncation
  };
  std::string durable;
  std::string current;
  std::vector<Write> unsynced;
  // Locks of SQLite's rollback and WAL protocols: shared ones counted, -1 exclusive.
  int num_shared = 0;
  const void* reserved = nullptr;
  const void* exclusive = nullptr;
  std::vector<std::unique_ptr<char[]>> shared_memory;
  int memory_locks[8] = {};
};

class CrashVfs {
 public:
  explicit CrashVfs(std::string name, uint64_t seed = 1);
  ~CrashVfs();
  CrashVfs(const CrashVfs&) = delete;
  CrashVfs& operator=(const CrashVfs&) = delete;

  const std::string& name() const { return name_; }

  // The machine stops at the n-th write, truncation or sync from now: that one and everything later fails
  // without effect. Then close every connection and restart().
  void crash_after(int64_t num_operations);
  bool crashed();
  // What the disk holds after power comes back.
  void restart();
  // The process that has it open is killed, the machine goes on: from now on everything fails without effect.
  // Then close every connection and go_on(): nothing that was written is lost.
  void kill_process();
  void go_on();
  // What SQLite makes of chance follows from `seed` too. For all of the program, so for who runs alone.
  static void seed_sqlite(uint64_t seed);

  // A disk whose sync does nothing.
  void set_lying(bool lying);
  // The next sync of the file whose name ends so fails; what it should have written stays unsynced.
  void fail_next_sync(std::string suffix);
  // The same, and what the connections share about the log is lost with it: whoever reads next finds in the
  // log what the sync should have written.
  void fail_next_sync_and_forget(std::string suffix);
  // Nothing more can be written until it has room again.
  void set_full(bool full);
  // The next `num` openings of a database fail, and the next `num` checkpoints find another one under way.
  void refuse_openings(int num);
  void refuse_checkpoints(int num);
  // Who waits for a lock does not sleep between two tries.
  void set_sleepless() { sleepless_ = true; }
  bool sleepless() const { return sleepless_; }
  // While held, syncs wait.
  void hold_syncs(bool hold);
  int64_t num_syncs();

  // Called by SQLite's file methods.
  std::shared_ptr<CrashFile> open(const std::string& path, bool create);
  bool exists(const std::string& path);
  void remove(const std::string& path);
  bool write(CrashFile& file, int64_t offset, const void* data, size_t size);
  bool truncate(CrashFile& file, int64_t size);
  bool sync(CrashFile& file, const std::string& path);
  bool takes_checkpoint_lock();  // under the mutex
  bool full();
  std::mutex& mutex() { return mutex_; }
  bool dead() const { return dead_; }

 private:
  bool operation_fails();  // under the mutex
  void tear(CrashFile& file);
  void reopen(bool loses_unsynced);
  void forget_shared_memory();

  const std::string name_;
  std::unique_ptr<sqlite3_vfs> vfs_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<CrashFile>> files_;
  std::mt19937_64 random_;
  int64_t operations_left_ = -1;
  bool dead_ = false;
  bool lying_ = false;
  bool held_ = false;
  bool sleepless_ = false;
  std::string failing_suffix_;
  bool forgets_ = false;
  bool full_ = false;
  int refused_openings_ = 0;
  int refused_checkpoints_ = 0;
  int64_t num_syncs_ = 0;
};

}  // namespace llm_dist::cluster::testing
