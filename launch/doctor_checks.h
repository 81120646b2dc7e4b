// What the ranks' facts mean: findings, each with what to do. Pure, so that every finding can be tested.
#pragma once

#include <string>
#include <vector>

#include "launch/doctor_facts.h"

namespace llm_dist::launch {

enum class Severity : uint8_t { kOk, kNote, kWarning, kError };
std::string_view to_string(Severity severity);

struct Finding {
  Severity severity = Severity::kOk;
  std::string check;    // "memlock"
  std::string where;    // "n1 n2", "ranks 0-3"; empty: everywhere
  std::string message;  // what was found
  std::string advice;   // what to do; empty when there is nothing
};

// What the ranks measured together, on rank 0.
struct Measured {
  std::string launcher;                    // "Open MPI", "Slurm step"…
  std::string rendezvous;                  // "mpi", "tcp", "none"
  std::string channel;                     // of step plans: "shared memory", "sockets"…
  double barrier_us = 0;                   // in worlds of several ranks
  std::vector<double> clock_skew_seconds;  // [size], against rank 0
  double clock_uncertainty_seconds = 0;
  std::string device;                      // "cpu", "cuda"
  std::string device_error;                // of one rank alone: why it has none
  double all_reduce_small_us = 0;          // 16 KiB over all ranks
  double all_reduce_bytes_per_second = 0;  // 32 MiB: the data of one rank over the time
  std::string all_reduce_error;            // empty: ran, and the sums were right
};

std::vector<Finding> examine(const std::vector<RankFacts>& ranks, const Measured& measured, bool allow_idle);

Severity worst(const std::vector<Finding>& findings);

}  // namespace llm_dist::launch
