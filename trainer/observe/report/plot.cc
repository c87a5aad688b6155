#include "trainer/observe/report/plot.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

#include "trainer/core/json.h"
#include "trainer/core/utf8.h"
#include "trainer/observe/report/page_files.h"
#include "trainer/observe/report/run_history.h"

namespace fsdp {
namespace {

std::string Format(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), format, value);
  return buffer;
}

const char* Name(Curve::Style style) {
  switch (style) {
    case Curve::Style::kFaint:
      return "faint";
    case Curve::Style::kDots:
      return "dots";
    case Curve::Style::kHollow:
      return "hollow";
    case Curve::Style::kMarks:
      return "marks";
    case Curve::Style::kTicks:
      return "ticks";
    case Curve::Style::kLine:
      break;
  }
  return "line";
}

bool HasValues(const Curve& curve) {
  return curve.style != Curve::Style::kMarks && curve.style != Curve::Style::kTicks;
}

std::string ColourClass(int colour) {
  return colour < 0 ? "ct" : "c" + std::to_string(colour % kColours);
}

// JSON that may stand inside <script>.
std::string EscapeScript(std::string json) {
  for (size_t at = 0; (at = json.find_first_of("<>&", at)) != std::string::npos; at += 6) {
    const char* const escape = json[at] == '<'   ? "\\u003c"
                               : json[at] == '>' ? "\\u003e"
                                                 : "\\u0026";
    json.replace(at, 1, escape);
  }
  return json;
}

void AddPoints(JsonObject& object, const std::vector<Point>& points, const char* format_y) {
  std::string x, y;
  for (const Point& p : points) {
    x += (x.empty() ? "" : ",") + Format("%.15g", p.x);
    y += (y.empty() ? "" : ",") + Format(format_y, p.y);
  }
  object.AddRaw("x", "[" + x + "]").AddRaw("y", "[" + y + "]");
}

std::string JsonOf(const Plot& plot) {
  std::vector<std::string> curves;
  for (const Curve& curve : plot.curves) {
    if (curve.points.empty()) continue;
    JsonObject object;
    object.Add("name", Printable(curve.name))
        .Add("colour", ColourClass(curve.colour))
        .Add("style", Name(curve.style))
        .Add("run", curve.run);
    AddPoints(object, curve.points, "%.6g");
    curves.push_back(object.Text());
  }
  return JsonObject()
      .Add("id", plot.id)
      .Add("title", plot.title)
      .Add("unit", plot.unit)
      .Add("max", plot.max_x)
      .Add("may_be_log", plot.may_be_log)
      .Add("from_zero", plot.from_zero)
      .AddRaw("curves", JsonArray(curves))
      .Text();
}

// A row for each curve with values.
std::string NumbersOf(const Plot& plot, const std::string& x) {
  std::string rows;
  for (const Curve& curve : plot.curves) {
    if (!HasValues(curve) || curve.points.empty()) continue;
    const auto [low, high] =
        std::minmax_element(curve.points.begin(), curve.points.end(),
                            [](const Point& a, const Point& b) { return a.y < b.y; });
    rows += "<tr><td>" + EscapeHtml(plot.title + (plot.unit.empty() ? "" : ", " + plot.unit)) +
            "</td><td>" + EscapeHtml(curve.name) + "</td>";
    for (const Point& p : {curve.points.back(), *low, *high}) {
      rows += "<td class=\"n\">" + Format("%.5g", p.y) + "</td><td class=\"dim\">at " +
              EscapeHtml(x) + Format(" %.15g", p.x) + "</td>";
    }
    rows += "</tr>\n";
  }
  return rows;
}

using Style = Curve::Style;

class Maker {
 public:
  Maker(const std::vector<RunHistory>& runs, const std::vector<std::string>& labels)
      : runs_(runs), labels_(labels) {
    bool tokens = false, samples = false;
    for (const RunHistory& run : runs) {
      max_x_ = std::max(max_x_, static_cast<double>(run.last_step));
      (run.of_samples ? samples : tokens) = true;
    }
    target_ = !samples ? "token" : tokens ? "token or sample" : "sample";
    targets_ = !samples ? "tokens" : tokens ? "tokens or samples" : "samples";
    Loss();
    Simple(
        "lr", "Learning rate", "", [](const RunHistory& r) { return &r.lr; }, 1, false);
    Simple(
        "grad_norm", "Gradient norm", "before clipping",
        [](const RunHistory& r) { return &r.grad_norm; }, 1, true);
    Simple(
        "tokens_per_s", "Throughput", targets_ + " a second",
        [](const RunHistory& r) { return &r.tokens_per_s; }, 1, true);
    StepTime();
    Compute();
    Memory();
    Simple(
        "max_load", "Busiest expert", "tokens over the mean, worst layer",
        [](const RunHistory& r) { return &r.max_load; }, 1, true);
    Simple(
        "expert_entropy", "Evenness of experts", "entropy of loads over ln N",
        [](const RunHistory& r) { return &r.expert_entropy; }, 1, false);
  }

  Plots Take() {
    Plots plots{std::move(plots_), "step", {}, targets_};
    for (Plot& plot : plots.plots) plot.max_x = max_x_;
    for (const RunHistory& run : runs_) {
      JsonObject tokens, time;
      AddPoints(tokens, run.tokens_so_far.Extremes(), "%.15g");
      AddPoints(time, run.seconds_so_far.Extremes(), "%.6g");
      plots.runs.push_back(JsonObject().Add("tokens", tokens).Add("time", time).Text());
    }
    return plots;
  }

 private:
  using Pick = std::function<const Series*(const RunHistory&)>;

  bool several() const { return runs_.size() > 1; }
  static std::vector<Point> Scaled(std::vector<Point> points, double scale) {
    for (Point& p : points) p.y *= scale;
    return points;
  }
  // The values, and over them the smoothed curve where there are enough.
  void AddSmoothed(Plot& plot, size_t run, const Series& series, const std::string& name,
                   double scale) {
    const auto colour = static_cast<int>(run);
    const std::vector<Point> smooth = series.Smoothed();
    if (smooth.empty()) {
      plot.curves.push_back({several() ? labels_[run] : name, colour, Style::kLine,
                             Scaled(series.Extremes(), scale), colour});
      return;
    }
    plot.curves.push_back({several() ? labels_[run] + ", " + name : name, colour, Style::kFaint,
                           Scaled(series.Extremes(), scale), colour});
    plot.curves.push_back({several() ? labels_[run] : "smoothed", colour, Style::kLine,
                           Scaled(smooth, scale), colour});
  }

  void Loss() {
    Plot plot{"loss", "Loss", "nats a " + target_, {}, true, /*from_zero=*/false};
    for (size_t r = 0; r < runs_.size(); ++r) {
      AddSmoothed(plot, r, runs_[r].loss, "training", 1);
    }
    // A colour for each set of each run, behind those of the runs, while there are as many.
    size_t sets = runs_.size();
    for (const RunHistory& run : runs_) sets += run.evals.size();
    auto colour = static_cast<int>(runs_.size());
    for (size_t r = 0; r < runs_.size(); ++r) {
      const auto run = static_cast<int>(r);
      for (const auto& [name, series] : runs_[r].evals) {
        const std::string what = name.empty() ? "evaluation" : "evaluation of " + name;
        plot.curves.push_back({several() ? labels_[r] + ", " + what : what,
                               several() && sets > kColours ? run : colour++, Style::kDots,
                               series.Extremes(), run});
      }
    }
    for (size_t r = 0; r < runs_.size() && runs_.size() <= 3; ++r) {  // More are no help.
      const std::string prefix = several() ? labels_[r] + ", " : "";
      const int run = static_cast<int>(r), mark = several() ? run : -1;
      plot.curves.push_back(
          {prefix + "checkpoint", mark, Style::kTicks, runs_[r].checkpoints.Extremes(), run});
      plot.curves.push_back(
          {prefix + "resume", mark, Style::kMarks, runs_[r].resumes.Extremes(), run});
    }
    plots_.push_back(std::move(plot));
  }

  void Simple(const char* id, const char* title, const std::string& unit, const Pick& pick,
              double scale, bool smoothed) {
    Plot plot{id, title, unit, {}, true, true};
    for (size_t r = 0; r < runs_.size(); ++r) {
      const Series& series = *pick(runs_[r]);
      if (smoothed) {
        AddSmoothed(plot, r, series, "as recorded", scale);
      } else {
        const auto run = static_cast<int>(r);
        plot.curves.push_back({several() ? labels_[r] : title, run, Style::kLine,
                               Scaled(series.Extremes(), scale), run});
      }
    }
    plots_.push_back(std::move(plot));
  }

  double Highest(const Pick& pick) const {
    double highest = 0;
    for (const RunHistory& run : runs_) {
      for (const Point& p : pick(run)->Extremes()) highest = std::max(highest, p.y);
    }
    return highest;
  }

  void StepTime() {
    const auto pick = [](const RunHistory& r) { return &r.step_time; };
    const bool seconds = Highest(pick) >= 2;
    Simple("step_time", "Step time", seconds ? "seconds" : "milliseconds", pick, seconds ? 1 : 1000,
           true);
  }

  void Compute() {
    const auto mfu = [](const RunHistory& r) { return &r.mfu; };
    if (Highest(mfu) > 0) {
      Simple("mfu", "Model FLOPs utilisation", "% of the device's peak", mfu, 100, true);
    }
    const auto tflops = [](const RunHistory& r) { return &r.tflops; };
    const bool small = Highest(tflops) < 1;
    Simple("tflops", "Compute", small ? "GFLOP/s of a device" : "TFLOP/s of a device", tflops,
           small ? 1000 : 1, true);
  }

  // One curve a run where the three peaks are the same, as planned memory makes them.
  void Memory() {
    const auto reserved = [](const RunHistory& r) { return &r.reserved; };
    double scale = 1;
    const char* unit = "bytes";
    for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
      if (Highest(reserved) * scale < 1024) break;
      scale /= 1024;
      unit = next;
    }
    Plot plot{"memory", "Memory of a rank", std::string("peak, ") + unit, {}, true, true};
    for (size_t r = 0; r < runs_.size(); ++r) {
      const std::vector<Point> all = runs_[r].reserved.Extremes(),
                               active = runs_[r].active.Extremes(),
                               allocated = runs_[r].allocated.Extremes();
      const auto colour = static_cast<int>(r);
      const auto named = [&](const std::string& what) {
        return several() ? labels_[r] + ", " + what : what;
      };
      if (allocated == all && active == all) {
        plot.curves.push_back({several() ? labels_[r] : "allocated = active = reserved", colour,
                               Style::kLine, Scaled(all, scale), colour});
        continue;
      }
      plot.curves.push_back({named("reserved"), colour, Style::kFaint, Scaled(all, scale), colour});
      plot.curves.push_back(
          {named("active"), several() ? colour : 1, Style::kLine, Scaled(active, scale), colour});
      plot.curves.push_back({named("allocated"), several() ? colour : 2, Style::kLine,
                             Scaled(allocated, scale), colour});
    }
    plots_.push_back(std::move(plot));
  }

  const std::vector<RunHistory>& runs_;
  const std::vector<std::string>& labels_;
  double max_x_ = 1;
  std::string target_, targets_;
  std::vector<Plot> plots_;
};

}  // namespace

Plots PlotsOf(const std::vector<RunHistory>& runs, const std::vector<std::string>& labels) {
  return Maker(runs, labels).Take();
}

std::string PlotsToHtml(const Plots& plots) {
  std::vector<std::string> data;
  std::string numbers;
  for (const Plot& plot : plots.plots) {
    const std::string rows = NumbersOf(plot, plots.x);
    if (rows.empty()) continue;  // Marks alone are no plot.
    data.push_back(JsonOf(plot));
    numbers += rows;
  }
  const std::string json = JsonObject()
                               .Add("x", Printable(plots.x))
                               .AddRaw("plots", JsonArray(data))
                               .AddRaw("runs", JsonArray(plots.runs))
                               .Add("targets", plots.targets)
                               .Text();
  std::string axis;
  if (!plots.runs.empty()) {
    axis =
        "<div id=\"axis\" hidden>over <button type=\"button\" data-axis=\"step\" aria-pressed="
        "\"true\">steps</button><button type=\"button\" data-axis=\"tokens\" aria-pressed="
        "\"false\">" +
        plots.targets +
        "</button><button type=\"button\" data-axis=\"time\" aria-pressed=\"false\">time"
        "</button></div>\n";
  }
  return axis +
         "<div class=\"plots\" id=\"plots\"></div>\n<noscript><p>A browser that runs scripts draws "
         "these curves.</p>\n<div class=\"scroll\"><table><thead><tr><th></th><th></th><th "
         "colspan=\"2\">last</th><th colspan=\"2\">lowest</th><th colspan=\"2\">highest</th></tr>"
         "</thead><tbody>" +
         numbers +
         "</tbody></table></div></noscript>\n<script type=\"application/json\" id=\"data\">" +
         EscapeScript(json) + "</script>\n<script>\n" + kPageJs + "</script>\n";
}

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : Printable(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace fsdp
