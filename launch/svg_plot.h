// Line plots as SVG, for results that people look at without tools.
#pragma once

#include <string>
#include <vector>

namespace llm_dist::launch {

struct PlotPoint {
  double x = 0;
  double y = 0;
  std::string label;  // beside the point, or empty
};

struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;  // joined in this order
};

struct PlotPanel {
  std::string x_label;
  std::string y_label;
  std::vector<PlotSeries> series;
};

// The panels one below the other. An axis starts at 0; the vertical one is logarithmic where its values span
// more than a factor of kLogarithmicFrom.
inline constexpr double kLogarithmicFrom = 20;
std::string plot_svg(const std::string& title, const std::vector<PlotPanel>& panels);

// Round numbers from `low` to beyond `high`, about `count` of them.
std::vector<double> linear_ticks(double low, double high, int count);
// 1, 2 and 5 times powers of ten around positive values.
std::vector<double> logarithmic_ticks(double low, double high);

}  // namespace llm_dist::launch
