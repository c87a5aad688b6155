// The plots of a page: data that page.js draws, and the numbers for a browser without scripts.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_REPORT_PLOT_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_REPORT_PLOT_H_

#include <string>
#include <string_view>
#include <vector>

#include "trainer/observe/report/series.h"

namespace fsdp {

struct RunHistory;

inline constexpr int kColours = 10;  // The page's palette has so many.

struct Curve {
  // kDots: and a line. kHollow: rings without a line. Without use of y, at x: kMarks over the whole
  // height, kTicks at the foot.
  enum class Style { kLine, kFaint, kDots, kHollow, kMarks, kTicks };

  std::string name;
  int colour = 0;  // From the page's palette; -1: the text's.
  Style style = Style::kLine;
  std::vector<Point> points;
  int run = 0;  // The run whose steps x counts.
};

struct Plot {
  std::string id;  // An HTML id.
  std::string title;
  std::string unit;
  std::vector<Curve> curves;
  bool may_be_log = true;
  bool from_zero = true;  // Where that costs little; false: the axis keeps to the values.
  double max_x = 1;       // x from 0 to here.
};

struct Plots {
  std::vector<Plot> plots;  // Those without values are left out.
  std::string x = "step";   // Name of the unit of x.
  // {"tokens": {"x", "y"}, "time": {"x", "y"}} by run: where its steps lie by tokens and in
  // seconds.
  std::vector<std::string> runs;
  std::string targets;  // "tokens", "samples" or both: what "tokens" counts.
};

// The curves that a report shows. `labels` tell the runs apart.
Plots PlotsOf(const std::vector<RunHistory>& runs, const std::vector<std::string>& labels);

// The place for the plots, a table inside <noscript>, the data as JSON, and the script: once a
// page. With `runs` there is a choice of axes, whose name goes into the element "over". The JSON:
// "x", "runs" and "targets" as above, "plots": [{"id", "title", "unit", "max", "may_be_log",
// "from_zero", "curves": [{"name", "colour", "style", "run", "x": [..], "y": [..]},
// ..]}, ..]. Names may hold any bytes.
std::string PlotsToHtml(const Plots& plots);

std::string EscapeHtml(std::string_view text);  // Any bytes; printable UTF-8 comes out.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_REPORT_PLOT_H_
