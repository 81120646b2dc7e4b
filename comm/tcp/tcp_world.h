// The World whose ranks are joined by TCP connections: one for each pair of ranks, made at a meeting.
#pragma once

#include <memory>

#include "comm/tcp/meeting.h"
#include "comm/world.h"

namespace llm_dist::comm {

// Meets the other ranks (until `meeting_deadline`), connects to each and makes the world.
Result<std::unique_ptr<World>> make_tcp_world(const MeetingPlan& meeting,
                                              Deadline meeting_deadline,
                                              const RankInfo& info,
                                              const WorldOptions& options);

}  // namespace llm_dist::comm
