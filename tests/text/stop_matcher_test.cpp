#include "src/text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace llm_dist::text {
namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> matched;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  return out << '"' << outcome.text << "\" " << (outcome.matched ? static_cast<int>(*outcome.matched) : -1);
}

// The definition, slowly: the match that ends first, of those the longest.
Outcome slow_match(const std::string& text, const std::vector<std::string>& stops, bool include_stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool ends = !stops[i].empty() && std::string_view(text).substr(0, end).ends_with(stops[i]);
      if (ends && (!best || stops[i].size() > stops[*best].size())) best = i;
    }
    if (best) return {text.substr(0, include_stop ? end : end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

TEST(StopMatcher, HoldsBackAPossibleStart) {
  StopMatcher matcher({"STOP"}, false);
  EXPECT_EQ(matcher.push("go ST").text, "go ");
  EXPECT_EQ(matcher.push("A").text, "STA");
  EXPECT_EQ(matcher.push(" S").text, " ");
  const auto piece = matcher.push("TOP and more");
  EXPECT_EQ(piece.text, "");
  EXPECT_EQ(piece.matched, 0u);
  EXPECT_EQ(matcher.push("ignored").text, "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, FlushReturnsWhatWasHeldBack) {
  StopMatcher matcher({"\n\n"}, false);
  EXPECT_EQ(matcher.push("end\n").text, "end");
  EXPECT_EQ(matcher.flush(), "\n");
  EXPECT_EQ(matcher.matched(), std::nullopt);
}

TEST(StopMatcher, IncludesTheStopWhenAsked) {
  StopMatcher matcher({"</s>", "END"}, true);
  EXPECT_EQ(matcher.push("text E").text, "text ");
  const auto piece = matcher.push("ND rest");
  EXPECT_EQ(piece.text, "END");
  EXPECT_EQ(piece.matched, 1u);
}

TEST(StopMatcher, NoStopsPassEverythingAtOnce) {
  StopMatcher matcher({"", {}}, false);
  EXPECT_EQ(matcher.push("anything").text, "anything");
}

TEST(StopMatcher, AnyCutOfTheTextGivesTheSameResult) {
  std::mt19937 random(3);
  const auto word = [&](size_t most) {
    std::string text(random() % (most + 1), 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    const std::vector<std::string> stops{word(5), word(5), word(6)};
    const bool include_stop = random() % 2 == 0;
    const std::string text = word(30);
    StopMatcher matcher(stops, include_stop);
    Outcome outcome;
    for (size_t at = 0; at < text.size() && !outcome.matched;) {
      const size_t size = 1 + random() % 5;
      const auto piece = matcher.push(std::string_view(text).substr(at, size));
      outcome.text += piece.text;
      outcome.matched = piece.matched;
      at += size;
    }
    outcome.text += matcher.flush();
    ASSERT_EQ(outcome, slow_match(text, stops, include_stop)) << text;
  }
}

}  // namespace
}  // namespace llm_dist::text
