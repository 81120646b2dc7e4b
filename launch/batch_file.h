// The two files of a batch: lines to answer, and the answers, which are appended as they come.
#pragma once

#include <cstddef>
#include <fstream>
#include <optional>
#include <string>
#include <unordered_set>

#include "comm/host/fd.h"
#include "src/base/status.h"

namespace llm_dist::launch {

struct BatchLine {
  size_t index = 0;  // from 0, empty lines not counted
  std::string text;
};

class BatchInput {
 public:
  static Result<BatchInput> open(const std::string& path);
  std::optional<BatchLine> next();

 private:
  std::ifstream file_;
  size_t next_index_ = 0;
};

// Held by one process at a time.
class BatchOutput {
 public:
  // Reads which lines are answered already and cuts off an answer that was being written when a run ended.
  static Result<BatchOutput> open(const std::string& path);

  bool holds(size_t index) const { return answered_.count(index) != 0; }
  size_t num_answered() const { return answered_.size(); }
  // One line, whole; resource_exhausted when the disk is full.
  Status append(std::string line);
  // Everything appended survives the machine's end.
  Status sync();

 private:
  Status read_answers(const std::string& path);

  comm::Fd file_;
  std::unordered_set<size_t> answered_;
};

}  // namespace llm_dist::launch
