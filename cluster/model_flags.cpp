#include "cluster/model_flags.h"

#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

struct Reserved {
  std::string_view name;
  std::string_view why;
};

constexpr std::string_view kRanks = "how many ranks there are comes from the job (its tp and pp)";
constexpr std::string_view kAddress = "each replica listens at a free port, and registers with it";
constexpr std::string_view kKey = "each attempt has a key of its own";
constexpr std::string_view kResult = "what a measurement leaves stays with its job";

// In the order of OwnFlag; then what would contradict one of those.
constexpr Reserved kReserved[] = {
    {"--tp", kRanks},
    {"--pp", kRanks},
    {"--port", kAddress},
    {"--served-model-name", "it is the model's name here"},
    {"--shutdown-timeout", "it is the coordinator's --drain-seconds"},
    {"--save-result", kResult},
    {"--progress-file", kResult},
    {"--layout", kRanks},
    {"--nproc-per-node", kRanks},
    {"--nnodes", kRanks},
    {"--node-rank", kRanks},
    {"--uds", kAddress},
    {"--api-key", kKey},
    {"--api-key-file", kKey},
};

}  // namespace

std::string name_of(OwnFlag flag) { return std::string(kReserved[static_cast<size_t>(flag)].name); }

Status refuse_own_flag(std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  for (const Reserved& reserved : kReserved) {
    if (reserved.name == name)
      return invalid_argument(format("{} is not for the catalogue: {}", name, reserved.why));
  }
  return ok_status();
}

FlagNames::FlagNames(const std::vector<std::vector<std::string>>& flags) {
  for (const std::vector<std::string>& names : flags) {
    for (const std::string& name : names) first_names_.emplace(name, names.front());
  }
}

std::string FlagNames::with_first_name(const std::string& word) const {
  const size_t end = word.find('=');
  auto found = first_names_.find(word.substr(0, end));
  if (found == first_names_.end()) return word;
  return found->second + (end == std::string::npos ? "" : word.substr(end));
}

}  // namespace llm_dist::cluster
