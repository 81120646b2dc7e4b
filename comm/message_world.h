// MessageWorld: the World whose ranks are processes that a MessageTransport joins.
#pragma once

#include <memory>

#include "comm/message_transport.h"
#include "comm/world.h"

namespace llm_dist::comm {

// `info` is what the launcher says; a transport that sees another world is failed_precondition. `backend`
// names the communicators' backend.
Result<std::unique_ptr<World>> make_message_world(std::unique_ptr<MessageTransport> transport,
                                                  const std::string& backend,
                                                  const RankInfo& info,
                                                  const WorldOptions& options);

}  // namespace llm_dist::comm
