// StopMatcher: finds stop strings in a text that arrives in pieces.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llm_dist::text {

// Text that could be the start of a stop string is held back until it is clear, so that a client never sees
// part of one. Among several matches the one that ends first wins, of those the longest: the result does not
// depend on how the text was cut into pieces. Linear in text × stop strings (Knuth, Morris, Pratt).
class StopMatcher {
 public:
  struct Piece {
    std::string text;               // may go to the client
    std::optional<size_t> matched;  // index of the stop string found; nothing is emitted after it
  };

  // An empty stop string never matches. `include_stop`: the stop string itself is emitted too.
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  Piece push(std::string_view text);
  // The text ended without a (further) match: what was held back.
  std::string flush();
  std::optional<size_t> matched() const { return matched_; }

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> fallback;  // [size]: longest proper border of each prefix
    size_t length_seen = 0;        // longest prefix of text that ends the stream so far
  };

  std::optional<size_t> advance(char byte);
  size_t held_back() const;

  std::vector<Stop> stops_;
  bool include_stop_;
  std::string pending_;
  std::optional<size_t> matched_;
};

}  // namespace llm_dist::text
