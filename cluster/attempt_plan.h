// What an attempt of a job runs, and the secrets that belong to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cluster/catalogue.h"
#include "cluster/launcher.h"
#include "cluster/store/job.h"

namespace llm_dist::cluster {

// Everything that belongs to one attempt follows from the coordinator's secret, so that a restarted one knows
// it again.
class AttemptSecrets {
 public:
  // `root` is the content of the coordinator's secret file.
  explicit AttemptSecrets(std::string root) : root_(std::move(root)) {}
  // Reads it, or makes it (mode 0600) where there is none: whole, or not at all.
  static Result<AttemptSecrets> open(const std::string& file);

  // What the replica proves itself with, once.
  std::string registration(JobId job, int64_t attempt) const { return derive("register", job, attempt); }
  // What the replica asks of its clients.
  std::string api_key(JobId job, int64_t attempt) const { return derive("serve", job, attempt); }

 private:
  std::string derive(const char* use, JobId job, int64_t attempt) const;
  std::string root_;
};

struct AttemptPlaces {
  std::string store_path;  // names this coordinator among those of the machine
  std::string folder;      // of all attempts
  std::string url;         // of this coordinator
  std::string ca_file{};   // certificate that it shows; empty without TLS
};

std::string attempt_mark(const AttemptPlaces& places, JobId job, int64_t attempt);
std::string attempt_folder(const AttemptPlaces& places, JobId job, int64_t attempt);
std::string result_file_of(const std::string& folder);
std::string progress_file_of(const std::string& folder);

// Of a measurement, in tokens.
struct AttemptProgress {
  int64_t done = 0;
  int64_t total = 0;
};
// As it says itself; nothing where it has not yet, or is no measurement.
std::optional<AttemptProgress> read_progress(const std::string& folder);

// `drain_seconds`: what open requests get when a replica is to end. Of a flag that the catalogue has too the
// job's value counts. not_found: the model is in the catalogue no more.
Result<LaunchRequest> plan_attempt(const Job& job,
                                   int64_t attempt,
                                   const Catalogue& catalogue,
                                   const AttemptPlaces& places,
                                   const AttemptSecrets& secrets,
                                   int drain_seconds);

}  // namespace llm_dist::cluster
