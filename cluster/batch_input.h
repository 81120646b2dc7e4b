// A batch's input file: one request a line (JSONL), read line by line.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace llm_dist::cluster {

inline constexpr size_t kMaxLineBytes = 1 << 20;
inline constexpr int64_t kMaxItems = 50'000;

// Where an item's line stands.
struct ItemPlace {
  int64_t number = 0;  // its line, from 1
  int64_t offset = 0;  // bytes from the file's begin
  size_t bytes = 0;    // without the line break
};

class BatchInput {
 public:
  // data_loss: it cannot be opened.
  static Result<BatchInput> open(const std::string& path);

  // The next line that is not blank, or nothing at the end. invalid_argument: longer than kMaxLineBytes;
  // data_loss: a read failed. Memory: one line and one chunk.
  Result<std::optional<ItemPlace>> next();
  // Of the place that next() returned last.
  const std::string& line() const { return line_; }
  // Any place's line. next() cannot go on after it.
  Result<std::string> read(const ItemPlace& place);

 private:
  explicit BatchInput(std::ifstream file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}
  Result<bool> read_line();
  Result<bool> fill();

  std::ifstream file_;
  std::string path_;
  std::string chunk_;  // what was read of the file last
  size_t used_ = 0;    // of it
  std::string line_;
  int64_t number_ = 0;
  int64_t offset_ = 0;
};

struct BatchRequest {
  std::string custom_id;
  std::string model;
  std::string body;  // JSON, for the replica
};

// One line: {"custom_id", "method": "POST", "url": endpoint, "body": {"model", …}} and nothing else.
// invalid_argument says what is wrong.
Result<BatchRequest> parse_batch_line(const std::string& line, const std::string& endpoint);

struct BatchSummary {
  int64_t num_items = 0;
  std::string model;  // of every item
};

// Reads the whole file. data_loss: it cannot be read. invalid_argument: "line 3: …"; also for a custom_id
// given twice, for two models, for no item at all and for more than kMaxItems.
Result<BatchSummary> check_batch_input(const std::string& path, const std::string& endpoint);

}  // namespace llm_dist::cluster
