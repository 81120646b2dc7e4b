// Opening a connection to a store: pragmas, migrations, epoch. Internal to this folder.
#pragma once

#include <cstdint>

#include "cluster/store/sqlite.h"

namespace llm_dist::cluster {

// WAL, synchronous=FULL, foreign keys.
Status prepare_connection(Database& database);
// Brings the schema to the newest version this program knows, all in one transaction.
Status migrate(Database& database);
// Counts the epoch up, durably, and returns it.
Result<int64_t> take_epoch(Database& database);

}  // namespace llm_dist::cluster
