// The flags of llm-dist that a launch is made of: those that are the coordinator's to say, and the names that
// one flag has.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::cluster {

// What the coordinator says of every attempt.
enum class OwnFlag : uint8_t {
  kTp,
  kPp,
  kPort,
  kServedModelName,
  kShutdownTimeout,
  kSaveResult,
  kProgressFile
};
std::string name_of(OwnFlag flag);

// invalid_argument: the word is a flag (by its first name) that is the coordinator's to say, or contradicts
// one.
Status refuse_own_flag(std::string_view word);

class FlagNames {
 public:
  FlagNames() = default;  // each flag has one name
  // Of each flag that has several: its names with their dashes, the first one first.
  explicit FlagNames(const std::vector<std::vector<std::string>>& flags);
  // The word with the flag's first name in it: "--tensor-parallel-size=2" is "--tp=2".
  std::string with_first_name(const std::string& word) const;

 private:
  std::map<std::string, std::string> first_names_;
};

}  // namespace llm_dist::cluster
