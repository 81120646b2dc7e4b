#include "src/base/nearest.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace llm_dist {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      int substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known) {
  // A hostile word of megabytes would take seconds; no known one is longer.
  constexpr size_t kMaxBytes = 256;
  word = word.substr(0, kMaxBytes);
  std::string_view best;
  int best_distance = std::numeric_limits<int>::max();
  for (std::string_view candidate : known) {
    int distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string_view near_word(std::string_view word, std::span<const std::string_view> known) {
  const std::string_view best = nearest_word(word, known);
  const size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  if (word.size() > 2 * best.size() + 2) return {};  // too far, and edits of a long word take their time
  return edit_distance(word, best) * 3 <= static_cast<int>(letters) + 2 ? best : std::string_view();
}

}  // namespace llm_dist
