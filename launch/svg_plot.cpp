#include "launch/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

constexpr double kWidth = 720;
constexpr double kPanelHeight = 320;
constexpr double kTitleHeight = 36;
constexpr double kLeft = 76;
constexpr double kRight = 24;
constexpr double kTop = 34;  // of a panel: the legend
constexpr double kBottom = 52;
constexpr int kTicks = 6;
constexpr const char* kColors[] = {"#1f6fb4", "#d1601f", "#3a8f3a", "#8f3a8f"};

// SVG takes no NaN; a tenth of a pixel is enough.
std::string pixels(double value) { return format_value(std::round(value * 10) / 10); }

std::string escaped(const std::string& text) {
  std::string result;
  for (char c : text) {
    switch (c) {
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '&': result += "&amp;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  }
  return result;
}

std::string text_at(double x, double y, const std::string& text, const std::string& attributes) {
  return format("<text x=\"{}\" y=\"{}\" {}>{}</text>\n", pixels(x), pixels(y), attributes, escaped(text));
}

std::string line_from_to(double x1, double y1, double x2, double y2, const char* style) {
  return format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{}\"/>\n",
                pixels(x1),
                pixels(y1),
                pixels(x2),
                pixels(y2),
                style);
}

// Values to pixels.
struct Axis {
  std::vector<double> ticks;
  bool logarithmic = false;
  double begin_px = 0;
  double end_px = 0;

  double at(double value) const {
    double low = ticks.front(), high = ticks.back();
    double share = logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return begin_px + std::clamp(share, 0.0, 1.0) * (end_px - begin_px);
  }
};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = 0;
};

template <typename Member>
Range range_of(const PlotPanel& panel, Member member) {
  Range range;
  for (const PlotSeries& series : panel.series) {
    for (const PlotPoint& point : series.points) {
      range.low = std::min(range.low, point.*member);
      range.high = std::max(range.high, point.*member);
    }
  }
  return range;
}

Axis make_axis(Range range, bool may_be_logarithmic, double begin_px, double end_px) {
  Axis axis{.ticks = {}, .begin_px = begin_px, .end_px = end_px};
  axis.logarithmic = may_be_logarithmic && range.low > 0 && std::isfinite(range.low) &&
                     range.high > kLogarithmicFrom * range.low;
  axis.ticks =
      axis.logarithmic ? logarithmic_ticks(range.low, range.high) : linear_ticks(0, range.high, kTicks);
  return axis;
}

std::string draw_frame(const PlotPanel& panel, const Axis& x, const Axis& y) {
  std::string svg;
  for (double tick : x.ticks) {
    svg += line_from_to(x.at(tick), y.begin_px, x.at(tick), y.end_px, "grid");
    svg += text_at(x.at(tick), y.begin_px + 18, format_value(tick), "text-anchor=\"middle\"");
  }
  for (double tick : y.ticks) {
    svg += line_from_to(x.begin_px, y.at(tick), x.end_px, y.at(tick), "grid");
    svg += text_at(x.begin_px - 8, y.at(tick) + 4, format_value(tick), "text-anchor=\"end\"");
  }
  svg += line_from_to(x.begin_px, y.begin_px, x.end_px, y.begin_px, "axis");
  svg += line_from_to(x.begin_px, y.begin_px, x.begin_px, y.end_px, "axis");
  svg += text_at((x.begin_px + x.end_px) / 2, y.begin_px + 40, panel.x_label, "text-anchor=\"middle\"");
  double middle = (y.begin_px + y.end_px) / 2;
  std::string turned = format("text-anchor=\"middle\" transform=\"rotate(-90 18 {})\"", pixels(middle));
  return svg + text_at(18, middle, panel.y_label, turned);
}

std::string draw_series(const PlotSeries& series, const char* color, const Axis& x, const Axis& y) {
  std::string line, marks;
  for (const PlotPoint& point : series.points) {
    std::string px = pixels(x.at(point.x)), py = pixels(y.at(point.y));
    line += format("{}{},{}", line.empty() ? "" : " ", px, py);
    marks += format("<circle cx=\"{}\" cy=\"{}\" r=\"3.5\" fill=\"{}\"/>\n", px, py, color);
    // Left of the point, where the curve that rises to the right leaves room.
    if (!point.label.empty())
      marks +=
          text_at(x.at(point.x) - 6, y.at(point.y) - 7, point.label, "class=\"note\" text-anchor=\"end\"");
  }
  return format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", line, color) +
         marks;
}

std::string draw_legend(const PlotPanel& panel, double top) {
  std::string svg;
  double x = kLeft;
  for (size_t i = 0; i < panel.series.size(); ++i) {
    const char* color = kColors[i % std::size(kColors)];
    svg += format("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{}\"/>\n",
                  pixels(x),
                  pixels(top + 12),
                  color);
    svg += text_at(x + 20, top + 18, panel.series[i].name, "text-anchor=\"start\"");
    x += 90;
  }
  return svg;
}

std::string draw_panel(const PlotPanel& panel, double top) {
  Axis x = make_axis(range_of(panel, &PlotPoint::x), false, kLeft, kWidth - kRight);
  Axis y = make_axis(range_of(panel, &PlotPoint::y), true, top + kPanelHeight - kBottom, top + kTop);
  std::string svg = draw_legend(panel, top) + draw_frame(panel, x, y);
  for (size_t i = 0; i < panel.series.size(); ++i) {
    if (panel.series[i].points.empty()) continue;
    svg += draw_series(panel.series[i], kColors[i % std::size(kColors)], x, y);
  }
  return svg;
}

}  // namespace

std::vector<double> linear_ticks(double low, double high, int count) {
  if (!(high > low)) high = low + 1;
  double rough = (high - low) / count;
  double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = power * 10;
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power < rough * 0.999) continue;
    step = factor * power;
    break;
  }
  std::vector<double> ticks;
  double first = std::floor(low / step);
  for (double i = first; ticks.empty() || ticks.back() < high; ++i) ticks.push_back(i * step);
  return ticks;
}

std::vector<double> logarithmic_ticks(double low, double high) {
  std::vector<double> ticks;
  double power = std::pow(10.0, std::floor(std::log10(low)));
  for (; ticks.empty() || ticks.back() < high; power *= 10) {
    for (double factor : {1.0, 2.0, 5.0}) {
      double tick = factor * power;
      // The last one below the values is where the axis begins.
      if (tick <= low) ticks.clear();
      if (ticks.empty() || ticks.back() < high) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::string plot_svg(const std::string& title, const std::vector<PlotPanel>& panels) {
  double height = kTitleHeight + kPanelHeight * static_cast<double>(panels.size());
  std::string svg = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n",
      kWidth,
      height,
      kWidth,
      height);
  svg +=
      "<style>.grid{stroke:#e4e4e4} .axis{stroke:#444} .note{font-size:10px;fill:#555}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  svg += text_at(kWidth / 2, 24, title, "text-anchor=\"middle\" font-size=\"15\"");
  for (size_t i = 0; i < panels.size(); ++i)
    svg += draw_panel(panels[i], kTitleHeight + kPanelHeight * static_cast<double>(i));
  return svg + "</svg>\n";
}

}  // namespace llm_dist::launch
