#include "src/text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace llm_dist::text {
namespace {

size_t longest_border(const std::string& text,
                      const std::vector<size_t>& fallback,
                      size_t length,
                      char next) {
  while (length > 0 && text[length] != next) length = fallback[length - 1];
  return text[length] == next ? length + 1 : 0;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop) : include_stop_(include_stop) {
  for (std::string& text : stops) {
    std::vector<size_t> fallback(text.size());
    for (size_t i = 1; i < text.size(); ++i)
      fallback[i] = longest_border(text, fallback, fallback[i - 1], text[i]);
    stops_.push_back({.text = std::move(text), .fallback = std::move(fallback)});
  }
}

// Index of the longest stop string that ends with `byte`.
std::optional<size_t> StopMatcher::advance(char byte) {
  std::optional<size_t> found;
  for (size_t i = 0; i < stops_.size(); ++i) {
    Stop& stop = stops_[i];
    if (stop.text.empty()) continue;
    stop.length_seen = longest_border(stop.text, stop.fallback, stop.length_seen, byte);
    if (stop.length_seen < stop.text.size()) continue;
    if (!found || stop.text.size() > stops_[*found].text.size()) found = i;
  }
  return found;
}

size_t StopMatcher::held_back() const {
  size_t longest = 0;
  for (const Stop& stop : stops_) longest = std::max(longest, stop.length_seen);
  return longest;
}

StopMatcher::Piece StopMatcher::push(std::string_view text) {
  if (matched_) return {.text = {}, .matched = matched_};
  for (const char byte : text) {
    pending_.push_back(byte);
    matched_ = advance(byte);
    if (!matched_) continue;
    if (!include_stop_) pending_.resize(pending_.size() - stops_[*matched_].text.size());
    return {.text = std::exchange(pending_, {}), .matched = matched_};
  }
  Piece piece{.text = pending_.substr(0, pending_.size() - held_back()), .matched = std::nullopt};
  pending_.erase(0, piece.text.size());
  return piece;
}

std::string StopMatcher::flush() { return std::exchange(pending_, {}); }

}  // namespace llm_dist::text
