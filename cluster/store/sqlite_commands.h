// Carries out one command inside an open transaction. Internal to this folder.
#pragma once

#include "cluster/store/command.h"
#include "cluster/store/sqlite.h"

namespace llm_dist::cluster {

// A failure may leave part of the command behind: the caller rolls back to its savepoint.
Outcome carry_out(Database& database, const Command& command);

}  // namespace llm_dist::cluster
