// The known name that a mistyped one is closest to.
#pragma once

#include <span>
#include <string_view>

namespace llm_dist {

// Edits (insertion, deletion, substitution) between two words (Levenshtein 1966).
int edit_distance(std::string_view a, std::string_view b);

// The known word with the fewest edits, the first of equals; empty when none is known.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known);

// The same where so few edits of the letters of `word`, dashes in front not counted, lead there that it may
// be what was meant: about every third; else empty.
std::string_view near_word(std::string_view word, std::span<const std::string_view> known);

}  // namespace llm_dist
