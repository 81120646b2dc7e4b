// What the tests of a store share: a folder that goes away, commands in few words.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "cluster/store/store.h"

namespace llm_dist::cluster::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    // In memory where possible: these tests are about what is written, not about the disk.
    std::error_code error;
    bool memory = std::filesystem::is_directory("/dev/shm", error);
    std::string pattern =
        (memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) + "/llm-dist-store-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

SubmitJob a_job(std::string key = "", std::string hash = "h");

// With the store's own epoch unless another is given.
Pending pending(const Store& store, CommandBody body, int64_t epoch = -1, int64_t at_us = 5);
Outcome apply_one(Store& store, CommandBody body, int64_t epoch = -1);

// Ends the current attempt where the new state may have none.
ChangeJob to_state(JobId job, JobState state);

}  // namespace llm_dist::cluster::testing
