#include "tests/cluster/crash_vfs.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstring>
#include <thread>

namespace llm_dist::cluster::testing {
namespace {

constexpr int64_t kSectorBytes = 512;
constexpr size_t kIndexHeaderBytes = 136;  // of the shared memory; see SQLite's walformat

struct Handle {
  sqlite3_file base;  // first, as SQLite demands
  CrashVfs* vfs;
  std::shared_ptr<CrashFile>* file;
  std::string* path;
  int level;
  bool remove_on_close;
};
Handle& handle_of(sqlite3_file* file) { return *reinterpret_cast<Handle*>(file); }

void set_level(Handle& handle, int level) {
  CrashFile& file = **handle.file;
  if (handle.level >= SQLITE_LOCK_SHARED) --file.num_shared;
  if (file.reserved == &handle) file.reserved = nullptr;
  if (file.exclusive == &handle) file.exclusive = nullptr;
  handle.level = level;
  if (level >= SQLITE_LOCK_SHARED) ++file.num_shared;
  if (level >= SQLITE_LOCK_RESERVED) file.reserved = &handle;
  if (level >= SQLITE_LOCK_EXCLUSIVE) file.exclusive = &handle;
}

int file_close(sqlite3_file* base) {
  Handle& handle = handle_of(base);
  {
    std::lock_guard lock(handle.vfs->mutex());
    set_level(handle, SQLITE_LOCK_NONE);
  }
  if (handle.remove_on_close) handle.vfs->remove(*handle.path);
  delete handle.file;
  delete handle.path;
  return SQLITE_OK;
}

int file_read(sqlite3_file* base, void* to, int size, sqlite3_int64 offset) {
  Handle& handle = handle_of(base);
  std::lock_guard lock(handle.vfs->mutex());
  if (handle.vfs->dead()) return SQLITE_IOERR_READ;
  const std::string& bytes = (*handle.file)->current;
  auto have = std::clamp<int64_t>(static_cast<int64_t>(bytes.size()) - offset, 0, size);
  if (have > 0) std::memcpy(to, bytes.data() + offset, have);
  std::memset(static_cast<char*>(to) + have, 0, size - have);
  return have == size ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

int file_write(sqlite3_file* base, const void* data, int size, sqlite3_int64 offset) {
  Handle& handle = handle_of(base);
  if (handle.vfs->full()) return SQLITE_FULL;
  return handle.vfs->write(**handle.file, offset, data, size) ? SQLITE_OK : SQLITE_IOERR_WRITE;
}
int file_truncate(sqlite3_file* base, sqlite3_int64 size) {
  Handle& handle = handle_of(base);
  return handle.vfs->truncate(**handle.file, size) ? SQLITE_OK : SQLITE_IOERR_TRUNCATE;
}
int file_sync(sqlite3_file* base, int) {
  Handle& handle = handle_of(base);
  return handle.vfs->sync(**handle.file, *handle.path) ? SQLITE_OK : SQLITE_IOERR_FSYNC;
}
int file_size(sqlite3_file* base, sqlite3_int64* size) {
  Handle& handle = handle_of(base);
  std::lock_guard lock(handle.vfs->mutex());
  *size = static_cast<sqlite3_int64>((*handle.file)->current.size());
  return handle.vfs->dead() ? SQLITE_IOERR_FSTAT : SQLITE_OK;
}

int file_lock(sqlite3_file* base, int level) {
  Handle& handle = handle_of(base);
  std::lock_guard lock(handle.vfs->mutex());
  if (level <= handle.level) return SQLITE_OK;
  CrashFile& file = **handle.file;
  bool others = file.num_shared > (handle.level >= SQLITE_LOCK_SHARED ? 1 : 0);
  if (file.exclusive != nullptr && file.exclusive != &handle) return SQLITE_BUSY;
  if (level >= SQLITE_LOCK_RESERVED && file.reserved != nullptr && file.reserved != &handle)
    return SQLITE_BUSY;
  if (level >= SQLITE_LOCK_EXCLUSIVE && others) return SQLITE_BUSY;
  set_level(handle, level);
  return SQLITE_OK;
}
int file_unlock(sqlite3_file* base, int level) {
  Handle& handle = handle_of(base);
  std::lock_guard lock(handle.vfs->mutex());
  if (level < handle.level) set_level(handle, level);
  return SQLITE_OK;
}
int file_check_reserved(sqlite3_file* base, int* reserved) {
  Handle& handle = handle_of(base);
  std::lock_guard lock(handle.vfs->mutex());
  *reserved = (*handle.file)->reserved != nullptr ? 1 : 0;
  return SQLITE_OK;
}
int file_control(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
int file_sector_size(sqlite3_file*) { return kSectorBytes; }
int file_characteristics(sqlite3_file*) { return 0; }

int memory_map(sqlite3_file* base, int region, int size, int extend, void volatile** memory) {
  Handle& handle = handle_of(base);
  std::lock_guard lock(handle.vfs->mutex());
  auto& regions = (*handle.file)->shared_memory;
  *memory = nullptr;
  if (region >= static_cast<int>(regions.size()) && extend == 0) return SQLITE_OK;
  while (region >= static_cast<int>(regions.size())) regions.push_back(std::make_unique<char[]>(size));
  *memory = regions[region].get();
  return SQLITE_OK;
}

// A connection only asks for what it does not hold, so counts are enough.
int memory_lock(sqlite3_file* base, int first, int count, int flags) {
  Handle& handle = handle_of(base);
  std::lock_guard lock(handle.vfs->mutex());
  int* locks = (*handle.file)->memory_locks;
  bool exclusive = (flags & SQLITE_SHM_EXCLUSIVE) != 0;
  // Recovery takes this lock together with the next one.
  constexpr int kCheckpointLock = 1;
  bool checkpoint = first == kCheckpointLock && count == 1 && (flags & SQLITE_SHM_LOCK) != 0;
  if (checkpoint && !handle.vfs->takes_checkpoint_lock()) return SQLITE_BUSY;
  for (int i = first; i < first + count && (flags & SQLITE_SHM_LOCK) != 0; ++i) {
    if (exclusive ? locks[i] != 0 : locks[i] < 0) return SQLITE_BUSY;
  }
  for (int i = first; i < first + count; ++i) {
    if (exclusive) {
      locks[i] = (flags & SQLITE_SHM_LOCK) != 0 ? -1 : 0;
    } else {
      locks[i] += (flags & SQLITE_SHM_LOCK) != 0 ? 1 : -1;
    }
  }
  return SQLITE_OK;
}
void memory_barrier(sqlite3_file* base) { std::lock_guard lock(handle_of(base).vfs->mutex()); }
int memory_unmap(sqlite3_file* base, int remove) {
  Handle& handle = handle_of(base);
  std::lock_guard lock(handle.vfs->mutex());
  if (remove != 0) (*handle.file)->shared_memory.clear();
  return SQLITE_OK;
}

const sqlite3_io_methods kMethods = {
    .iVersion = 2,
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_unlock,
    .xCheckReservedLock = file_check_reserved,
    .xFileControl = file_control,
    .xSectorSize = file_sector_size,
    .xDeviceCharacteristics = file_characteristics,
    .xShmMap = memory_map,
    .xShmLock = memory_lock,
    .xShmBarrier = memory_barrier,
    .xShmUnmap = memory_unmap,
    .xFetch = nullptr,
    .xUnfetch = nullptr,
};

CrashVfs& disk_of(sqlite3_vfs* vfs) { return *static_cast<CrashVfs*>(vfs->pAppData); }
sqlite3_vfs* system_vfs() { return sqlite3_vfs_find("unix"); }

int vfs_open(sqlite3_vfs* vfs, const char* name, sqlite3_file* base, int flags, int* flags_out) {
  Handle& handle = handle_of(base);
  handle.base.pMethods = nullptr;
  static_assert(sizeof(void*) == 8);
  std::string path =
      name == nullptr ? "temporary-" + std::to_string(reinterpret_cast<uintptr_t>(base)) : name;
  auto file = disk_of(vfs).open(path, (flags & SQLITE_OPEN_CREATE) != 0);
  if (file == nullptr) return SQLITE_CANTOPEN;
  handle = {.base = {&kMethods},
            .vfs = &disk_of(vfs),
            .file = new std::shared_ptr<CrashFile>(std::move(file)),
            .path = new std::string(path),
            .level = SQLITE_LOCK_NONE,
            .remove_on_close = (flags & SQLITE_OPEN_DELETEONCLOSE) != 0};
  if (flags_out != nullptr) *flags_out = flags;
  return SQLITE_OK;
}
int vfs_delete(sqlite3_vfs* vfs, const char* name, int) {
  disk_of(vfs).remove(name);
  return SQLITE_OK;
}
int vfs_access(sqlite3_vfs* vfs, const char* name, int, int* result) {
  *result = disk_of(vfs).exists(name) ? 1 : 0;
  return SQLITE_OK;
}
int vfs_full_path(sqlite3_vfs*, const char* name, int size, char* full) {
  sqlite3_snprintf(size, full, "%s", name);
  return SQLITE_OK;
}
int vfs_randomness(sqlite3_vfs*, int size, char* bytes) {
  return system_vfs()->xRandomness(system_vfs(), size, bytes);
}
int vfs_sleep(sqlite3_vfs* vfs, int microseconds) {
  return disk_of(vfs).sleepless() ? microseconds : system_vfs()->xSleep(system_vfs(), microseconds);
}
int vfs_time(sqlite3_vfs*, double* days) { return system_vfs()->xCurrentTime(system_vfs(), days); }
int vfs_last_error(sqlite3_vfs*, int, char*) { return 0; }

// The kernel's cache and the disk see a write alike.
void put(std::string& bytes, int64_t offset, std::string_view data) {
  if (bytes.size() < offset + data.size()) bytes.resize(offset + data.size());
  bytes.replace(offset, data.size(), data);
}

void apply_to(std::string& bytes, const CrashFile::Write& write) {
  if (write.bytes.empty()) {
    bytes.resize(write.offset);
  } else {
    put(bytes, write.offset, write.bytes);
  }
}

}  // namespace

CrashVfs::CrashVfs(std::string name, uint64_t seed)
    : name_(std::move(name)), vfs_(std::make_unique<sqlite3_vfs>()), random_(seed) {
  *vfs_ = {.iVersion = 1,
           .szOsFile = sizeof(Handle),
           .mxPathname = 512,
           .zName = name_.c_str(),
           .pAppData = this,
           .xOpen = vfs_open,
           .xDelete = vfs_delete,
           .xAccess = vfs_access,
           .xFullPathname = vfs_full_path,
           .xRandomness = vfs_randomness,
           .xSleep = vfs_sleep,
           .xCurrentTime = vfs_time,
           .xGetLastError = vfs_last_error};
  sqlite3_vfs_register(vfs_.get(), 0);
}
CrashVfs::~CrashVfs() { sqlite3_vfs_unregister(vfs_.get()); }

void CrashVfs::crash_after(int64_t num_operations) {
  std::lock_guard lock(mutex_);
  operations_left_ = num_operations;
}
bool CrashVfs::crashed() {
  std::lock_guard lock(mutex_);
  return dead_;
}
void CrashVfs::set_lying(bool lying) {
  std::lock_guard lock(mutex_);
  lying_ = lying;
}
void CrashVfs::fail_next_sync(std::string suffix) {
  std::lock_guard lock(mutex_);
  failing_suffix_ = std::move(suffix);
}
void CrashVfs::fail_next_sync_and_forget(std::string suffix) {
  fail_next_sync(std::move(suffix));
  std::lock_guard lock(mutex_);
  forgets_ = true;
}
void CrashVfs::set_full(bool full) {
  std::lock_guard lock(mutex_);
  full_ = full;
}
bool CrashVfs::full() {
  std::lock_guard lock(mutex_);
  return full_;
}
void CrashVfs::refuse_openings(int num) {
  std::lock_guard lock(mutex_);
  refused_openings_ = num;
}
void CrashVfs::refuse_checkpoints(int num) {
  std::lock_guard lock(mutex_);
  refused_checkpoints_ = num;
}
bool CrashVfs::takes_checkpoint_lock() { return refused_checkpoints_ == 0 || --refused_checkpoints_ < 0; }
void CrashVfs::forget_shared_memory() {
  for (auto& [path, file] : files_) {
    for (auto& region : file->shared_memory) std::memset(region.get(), 0, kIndexHeaderBytes);
  }
}
void CrashVfs::hold_syncs(bool hold) {
  std::lock_guard lock(mutex_);
  held_ = hold;
}
int64_t CrashVfs::num_syncs() {
  std::lock_guard lock(mutex_);
  return num_syncs_;
}

std::shared_ptr<CrashFile> CrashVfs::open(const std::string& path, bool create) {
  std::lock_guard lock(mutex_);
  auto found = files_.find(path);
  if (dead_) return nullptr;
  if (refused_openings_ > 0 && path.find('-') == std::string::npos) {
    --refused_openings_;
    return nullptr;
  }
  if (found != files_.end()) return found->second;
  if (!create) return nullptr;
  return files_[path] = std::make_shared<CrashFile>();
}
bool CrashVfs::exists(const std::string& path) {
  std::lock_guard lock(mutex_);
  return files_.contains(path);
}
void CrashVfs::remove(const std::string& path) {
  std::lock_guard lock(mutex_);
  if (!dead_) files_.erase(path);
}

bool CrashVfs::operation_fails() {
  if (!dead_ && operations_left_ > 0) --operations_left_;
  if (operations_left_ == 0) dead_ = true;
  return dead_;
}

bool CrashVfs::write(CrashFile& file, int64_t offset, const void* data, size_t size) {
  std::lock_guard lock(mutex_);
  if (dead_) return false;
  std::string bytes(static_cast<const char*>(data), size);
  // The write that the crash interrupts may be on the disk in part.
  bool fails = operation_fails();
  put(file.current, offset, bytes);
  file.unsynced.push_back({offset, std::move(bytes)});
  return !fails;
}

bool CrashVfs::truncate(CrashFile& file, int64_t size) {
  std::lock_guard lock(mutex_);
  if (operation_fails()) return false;
  file.current.resize(size);
  file.unsynced.push_back({size, ""});
  return true;
}

bool CrashVfs::sync(CrashFile& file, const std::string& path) {
  std::unique_lock lock(mutex_);
  while (held_) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
  if (operation_fails()) return false;
  ++num_syncs_;
  if (!failing_suffix_.empty() && path.ends_with(failing_suffix_)) {
    failing_suffix_.clear();
    if (forgets_) forget_shared_memory();
    forgets_ = false;
    return false;
  }
  if (lying_) return true;
  for (const CrashFile::Write& write : file.unsynced) apply_to(file.durable, write);
  file.unsynced.clear();
  return true;
}

void CrashVfs::tear(CrashFile& file) {
  // A disk may have written none of it, all of it, or any of its sectors.
  const auto mood = random_() % 3;
  for (const CrashFile::Write& write : file.unsynced) {
    if (mood == 0 || (mood == 2 && random_() % 2 == 0)) continue;
    if (write.bytes.empty()) {
      file.durable.resize(write.offset);
      continue;
    }
    for (int64_t at = 0; at < static_cast<int64_t>(write.bytes.size()); at += kSectorBytes) {
      if (mood == 2 && random_() % 4 == 0) continue;
      put(file.durable, write.offset + at, std::string_view(write.bytes).substr(at, kSectorBytes));
    }
  }
  file.current = file.durable;
  file.unsynced.clear();
}

void CrashVfs::restart() { reopen(true); }
void CrashVfs::go_on() { reopen(false); }
void CrashVfs::kill_process() {
  std::lock_guard lock(mutex_);
  dead_ = true;
}
void CrashVfs::seed_sqlite(uint64_t seed) {
  sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, static_cast<int>(seed % 1'000'000'007) + 1, nullptr);
}

// Locks and shared memory belong to processes.
void CrashVfs::reopen(bool loses_unsynced) {
  std::lock_guard lock(mutex_);
  for (auto& [path, file] : files_) {
    auto after = std::make_shared<CrashFile>();
    if (loses_unsynced) tear(*file);
    after->durable = std::move(file->durable);
    after->current = std::move(file->current);
    after->unsynced = std::move(file->unsynced);
    file = std::move(after);
  }
  dead_ = false;
  operations_left_ = -1;
}

}  // namespace llm_dist::cluster::testing
