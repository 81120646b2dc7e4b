// What all ranks of a replica have in common: options that decide what a step's tensors look like, and the
// model. Every rank has a command line and files of its own, which nothing else compares.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/world.h"
#include "src/checkpoint/checkpoint.h"
#include "src/engine/engine_options.h"

namespace llm_dist::launch {

// What it is called by who set it, and its value, in text without a tab or a newline.
using CommonTerms = std::vector<std::pair<std::string, std::string>>;

// Of the model: its configuration, every tensor's name, scheme and shape, and some rows of the weights, each
// as a hash. An error where those cannot be read.
Result<CommonTerms> common_terms(const engine::EngineOptions& options,
                                 const checkpoint::Checkpoint& checkpoint);

std::string pack(const CommonTerms& terms);

// By rank, packed. invalid_argument names the first rank that differs from rank 0, its host, and in what.
Status refuse_different_terms(std::span<const std::string> packed, std::span<const comm::HostInfo> hosts);

}  // namespace llm_dist::launch
