// What all ranks of a world say yes to, where each can only answer for itself.
#pragma once

#include <span>
#include <vector>

#include "comm/world.h"

namespace llm_dist::comm {

// By question, whether every rank's answer is yes. Every rank calls it with as many answers, in the same
// order with the world's other calls; an error on all of them where they have different numbers.
Result<std::vector<bool>> agree(World& world, const std::vector<bool>& mine, Deadline deadline);
// The same among some ranks, this one among them: other ranks call it about questions of their own.
Result<std::vector<bool>> agree(World& world,
                                std::span<const int> ranks,
                                const std::vector<bool>& mine,
                                Deadline deadline);

}  // namespace llm_dist::comm
