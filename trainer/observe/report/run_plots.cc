#include "trainer/observe/report/run_plots.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "trainer/core/json.h"

namespace fsdp {
namespace {

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
  }

  RunPlots Take() {
    std::vector<std::string> axes;
    for (const RunHistory& run : runs_) {
      axes.push_back(JsonObject()
                         .AddRaw("tokens", PointsToJson(run.tokens_so_far.Extremes(), "%.15g"))
                         .AddRaw("time", PointsToJson(run.seconds_so_far.Extremes()))
                         .Text());
    }
    return {std::move(plots_), max_x_, std::move(axes), targets_};
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

std::string RunPlots::Html() const {
  std::string html;
  for (const Plot& plot : plots) html += PlotToHtml(plot, max_x);
  return html;
}

std::string RunPlots::Json() const {
  std::vector<std::string> all;
  for (const Plot& plot : plots) all.push_back(PlotToJson(plot, max_x));
  return JsonObject()
      .AddRaw("plots", JsonArray(all))
      .AddRaw("runs", JsonArray(axes))
      .Add("targets", targets)
      .Text();
}

RunPlots PlotsOf(const std::vector<RunHistory>& runs, const std::vector<std::string>& labels) {
  return Maker(runs, labels).Take();
}

}  // namespace fsdp
