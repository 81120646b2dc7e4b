// The known name that a mistyped one is closest to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace llm_dist::launch {

// Edits (insertion, deletion, substitution) between two words (Levenshtein 1966).
int edit_distance(std::string_view a, std::string_view b);

// Empty when nothing is within a third of the word's length.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace llm_dist::launch
