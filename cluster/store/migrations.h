// The steps that make a store's schema, compiled in. A released step never changes; a new one is added below
// it.
#pragma once

#include <span>

namespace llm_dist::cluster {

// SQL of schema version 1, 2, …, in the dialect of SQLite.
std::span<const char* const> sqlite_migrations();

}  // namespace llm_dist::cluster
