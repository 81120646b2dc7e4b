// The plot's geometry: values lie where the axes say, inside the frame, and the text is well-formed.
#include "launch/svg_plot.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace llm_dist::launch {
namespace {

// The numbers behind each `before`, and those behind `between` that follow them; without `between`, one each.
std::vector<std::vector<double>> numbers(const std::string& svg,
                                         const std::string& before,
                                         const std::string& between = "") {
  std::vector<std::vector<double>> found;
  for (size_t at = svg.find(before); at != std::string::npos; at = svg.find(before, at)) {
    at += before.size();
    size_t read = 0;
    found.push_back({std::stod(svg.substr(at), &read)});
    at += read;
    if (between.empty() || svg.compare(at, between.size(), between) != 0) continue;
    found.back().push_back(std::stod(svg.substr(at + between.size())));
  }
  return found;
}

std::vector<std::vector<double>> circles(const std::string& svg) {
  return numbers(svg, "<circle cx=\"", "\" cy=\"");
}

TEST(Ticks, AreRoundAndCoverTheValues) {
  EXPECT_EQ(linear_ticks(0, 100, 5), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(linear_ticks(0, 7.3, 6), (std::vector<double>{0, 2, 4, 6, 8}));
  EXPECT_EQ(linear_ticks(0, 0, 5).front(), 0) << "a plot without values still has an axis";
  EXPECT_EQ(logarithmic_ticks(30, 900), (std::vector<double>{20, 50, 100, 200, 500, 1000}));
  EXPECT_EQ(logarithmic_ticks(1, 25), (std::vector<double>{1, 2, 5, 10, 20, 50}));
}

TEST(SvgPlot, PointsLieWhereTheAxesSay) {
  std::string svg = plot_svg("t", {{"x", "y", {{"a", {{0, 0, ""}, {50, 25, ""}, {100, 100, ""}}}}}});
  auto points = circles(svg);
  ASSERT_EQ(points.size(), 3u);
  EXPECT_NEAR(points[1][0], (points[0][0] + points[2][0]) / 2, 0.2);
  EXPECT_NEAR(points[0][1] - points[1][1], (points[0][1] - points[2][1]) / 4, 0.2);
  EXPECT_GT(points[0][1], points[2][1]) << "up is more";
  EXPECT_EQ(numbers(svg, "<polyline points=\"", ",")[0], points[0]);
}

TEST(SvgPlot, WideRangesAreLogarithmic) {
  auto points = circles(plot_svg("t", {{"x", "y", {{"a", {{1, 10, ""}, {2, 100, ""}, {3, 1000, ""}}}}}}));
  ASSERT_EQ(points.size(), 3u);
  EXPECT_NEAR(points[0][1] - points[1][1], points[1][1] - points[2][1], 0.2);
}

TEST(SvgPlot, EverythingIsInsideThePicture) {
  std::vector<PlotSeries> series = {{"median", {{310, 12, "1/s"}, {605, 14, "2/s"}, {900, 99, "inf/s"}}},
                                    {"p99", {{310, 30, ""}, {605, 80, ""}, {900, 4000, ""}}}};
  std::string svg = plot_svg("a plot", {{"tokens", "ms", series}, {"tokens", "ms", series}});
  double height = numbers(svg, "height=\"")[0][0];
  auto points = circles(svg);
  EXPECT_EQ(points.size(), 12u);
  for (const auto& point : points) {
    EXPECT_GT(point[0], 60);
    EXPECT_LT(point[0], 720);
    EXPECT_GT(point[1], 36);
    EXPECT_LT(point[1], height);
  }
  // The second panel is the first one, lower.
  EXPECT_NEAR(points[6][1] - points[0][1], points[11][1] - points[5][1], 0.2);
  EXPECT_NE(svg.find(">inf/s<"), std::string::npos);
}

TEST(SvgPlot, TextIsEscapedAndNothingIsNotANumber) {
  std::string svg = plot_svg("a < b & \"c\"", {{"x", "y", {{"empty", {}}, {"one", {{0, 0, ""}}}}}});
  EXPECT_NE(svg.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_EQ(circles(svg).size(), 1u);
}

}  // namespace
}  // namespace llm_dist::launch
