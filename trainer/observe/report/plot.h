// One plot of the report: static SVG that fills whatever width it gets, and the same numbers as
// JSON for page.js, which makes it answer to the pointer.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_REPORT_PLOT_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_REPORT_PLOT_H_

#include <string>
#include <string_view>
#include <vector>

#include "trainer/observe/report/series.h"

namespace fsdp {

inline constexpr int kColours = 10;  // The page's palette has so many.

struct Curve {
  // kDots: and a line. Without use of y, at x: kMarks over the whole height, kTicks at the foot.
  enum class Style { kLine, kFaint, kDots, kMarks, kTicks };

  std::string name;
  int colour = 0;  // From the page's palette; -1: the text's.
  Style style = Style::kLine;
  std::vector<Point> points;
  int run = 0;  // The run whose steps x counts.
};

struct Plot {
  std::string id;     // Literal, as in HTML's id.
  std::string title;  // Literals, HTML.
  std::string unit;
  std::vector<Curve> curves;
  bool may_be_log = true;
  bool from_zero = true;  // Where that costs little; false: the axis keeps to the values.
};

// Round numbers in [low, high], ascending: about `count`, or on a logarithmic axis the decades,
// with 2 and 5 where there are few. low < high; above 0 for logarithmic.
std::vector<double> Ticks(double low, double high, int count);
std::vector<double> LogTicks(double low, double high, int count);

// "0", "0.25", "1200", "12k", "3.4M", "4e-4".
std::string TickLabel(double value);

// Whether the axis begins as a logarithmic one: all values are above 0, and a linear one would
// squeeze most of them into its lowest twentieth.
bool BeginsLogarithmic(const Plot& plot);

// A <figure>. x from 0 to `max_x` > 0. Curves' names are escaped here; empty without points.
std::string PlotToHtml(const Plot& plot, double max_x);
// {"id": .., "max": .., "from_zero": .., "curves": [{"name", "colour", "style", "run", "x": [..],
// "y": [..]}, ..]}; no '<' in it.
std::string PlotToJson(const Plot& plot, double max_x);
// {"x": [..], "y": [..]}
std::string PointsToJson(const std::vector<Point>& points, const char* format_y = "%.6g");

std::string EscapeHtml(std::string_view text);  // Any bytes; printable UTF-8 comes out.
std::string EscapeScript(std::string json);     // JSON that may stand inside <script>.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_REPORT_PLOT_H_
