// What the fuzz targets share: each defines LLVMFuzzerTestOneInput and holds what it reads against CHECKs, so
// that it finds wrong answers and not crashes alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/check.h"
#include "src/base/status.h"

// What libFuzzer and replay.cpp call.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace llm_dist::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// An input that stands for several files: cut at lines "====". As many pieces as asked for, empty at the end
// where the input has fewer.
std::vector<std::string_view> pieces_of(std::string_view input, size_t count);

bool is_utf8(std::string_view text);

// An error of the world says what is wrong.
void expect_message(const Status& status);

// A folder of this process's own under TMPDIR, removed when the process ends by itself.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view name) const { return path_ + "/" + std::string(name); }
  void write(std::string_view name, std::string_view text) const;
  // Empty text: no such file.
  void write_or_remove(std::string_view name, std::string_view text) const;

 private:
  std::string path_;
};

}  // namespace llm_dist::fuzz
