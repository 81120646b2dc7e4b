// Where what can be found out again is kept between runs.
#pragma once

#include <string>

namespace llm_dist {

// $XDG_CACHE_HOME, else ~/.cache; empty where neither is known. The folder need not exist.
std::string user_cache_folder();

}  // namespace llm_dist
