// Launcher: starts the processes of one attempt, finds them again, ends them. Local processes today; a batch
// system is another implementation.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/slots.h"
#include "src/base/status.h"

namespace llm_dist::cluster {

struct LaunchRequest {
  // Marks every process of the attempt, in its environment: what carries the mark and belongs to no attempt
  // that lives is ended.
  std::string mark;
  std::string folder;                  // of the attempt: its log, its exit code, its results
  std::vector<std::string> arguments;  // of llm-dist
  std::vector<std::pair<std::string, std::string>> environment{};
  int num_ranks = 1;
  std::vector<int> slots{};  // one for each rank: what they run on
};

struct Observation {
  bool running = false;
  // Of what has ended; absent when nobody was there to see it.
  std::optional<int> exit_code{};
  // The last line in which llm-dist itself said why it ended; empty: none was found.
  std::string last_words{};
};

enum class StopMode : uint8_t { kTerminate, kKill };

class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual std::string_view name() const = 0;
  // As none is held.
  virtual Slots slots() const = 0;
  // The handle by which it is found again, also by another coordinator process on this machine.
  virtual Result<std::string> launch(const LaunchRequest& request) = 0;
  // An error, here and below: it cannot be told now what lives, and nothing may be concluded; to be asked
  // again.
  virtual Result<Observation> observe(const std::string& handle, const std::string& folder) = 0;
  // Asks; observe() tells when it has happened.
  virtual Status stop(const std::string& handle, StopMode mode) = 0;
  // Kills whatever carries the mark and removes what it kept outside of the attempt's folder. The number of
  // processes that it found; none of them is left.
  virtual Result<int> sweep(const std::string& mark, const std::string& folder) = 0;
};

}  // namespace llm_dist::cluster
