#include "trainer/observe/report/traces.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/units.h"
#include "trainer/observe/report/plot.h"
#include "trainer/observe/report/series.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFiles = 16;
constexpr uintmax_t kMaxBytes = 64 << 20;

using Sums = std::map<std::pair<std::string, std::string>, TraceTimes::Operation>;

// Returns the time from the first begin to the last end.
double Add(const JsonValue& trace, Sums& sums) {
  std::map<int64_t, std::string> streams;
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (const JsonValue& event : trace.At("traceEvents").Elements()) {
    const JsonValue kind = event.At("ph");
    if (kind.IsText("M") && event.At("name").IsText("thread_name")) {
      streams[event.At("tid").Integer()] = event.At("args").At("name").Text();
    }
    if (!kind.IsText("X")) continue;
    const std::string& stream = streams[event.At("tid").Integer()];
    const std::string& name = event.At("name").Text();
    const double ts = event.At("ts").Number(), dur = event.At("dur").Number();
    begin = std::min(begin, ts);
    end = std::max(end, ts + dur);
    TraceTimes::Operation& sum = sums[{stream, name}];
    sum.stream = stream;
    sum.name = name;
    sum.seconds += dur * 1e-6;
    sum.count += 1;
  }
  return std::max(0.0, end - begin) * 1e-6;
}

}  // namespace

std::optional<TraceTimes> ReadTraces(const std::string& directory) {
  std::map<int64_t, fs::path> by_step;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(directory, none)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("step_") || !name.ends_with(".json")) continue;
    char* end = nullptr;
    const int64_t step = std::strtoll(name.c_str() + 5, &end, 10);
    const std::string rest = end;
    if (rest == ".json" || rest == "_rank_0.json") by_step[step] = entry.path();
  }
  if (by_step.empty()) return std::nullopt;
  while (by_step.size() > kFiles) by_step.erase(by_step.begin());

  TraceTimes times;
  Sums sums;
  for (const auto& [step, path] : by_step) {
    const std::string name = path.filename();
    try {
      const uintmax_t bytes = fs::file_size(path);
      if (bytes > kMaxBytes) {
        throw std::runtime_error(HumanBytes(static_cast<int64_t>(bytes)) + ", too large to read");
      }
      Sums of_this;
      const double seconds = Add(ParseJson(ReadWholeFile(path, kMaxBytes), "", {}), of_this);
      for (auto& [key, operation] : of_this) {
        auto [at, fresh] = sums.try_emplace(key, operation);
        if (!fresh) {
          at->second.seconds += operation.seconds;
          at->second.count += operation.count;
        }
      }
      times.seconds += seconds;
      times.files.push_back(name);
    } catch (const std::exception& error) {
      times.notes.push_back("traces/" + name + " is left out: " + error.what());
    }
  }
  const double n = std::max<double>(1, static_cast<double>(times.files.size()));
  times.seconds /= n;
  for (auto& [key, operation] : sums) {
    operation.seconds /= n;
    operation.count /= n;
    times.operations.push_back(std::move(operation));
  }
  std::stable_sort(times.operations.begin(), times.operations.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return times;
}

// ---- The picture.

namespace {

constexpr double kWidth = 1000, kRow = 22, kBar = 16, kMemory = 90;
// Closer than that they are one, in parts of the width.
constexpr double kGap = 0.3;

// Colours are drawn by style attributes, which no rule of page.css outranks. A rule outranks any
// other attribute.
struct Kind {
  std::string_view name, colour;
};
constexpr std::array<Kind, 7> kKinds = {{{"forward", "#4c9be8"},
                                         {"recompute", "#a5cdf5"},
                                         {"backward", "#2b5f9e"},
                                         {"update", "#2ca02c"},
                                         {"collective", "#e8833a"},
                                         {"other", "#8a8a8a"},
                                         {"wait", "url(#hatched)"}}};
constexpr size_t kCollective = 4, kOther = 5, kWait = 6;

using Stretches = std::vector<std::pair<double, double>>;  // Seconds: begin, end.
struct Step {
  std::string directory, file;
  std::string why_not;  // Empty: it was read.
  double seconds = 0;
  std::vector<std::string> streams;  // In the order in which the trace names them.
  std::map<std::string, std::array<Stretches, kKinds.size()>> work;
  std::map<std::string, std::vector<Point>> memory;  // Bytes over seconds, by name.
};

size_t KindOf(const JsonValue& event) {
  const std::string& name = event.At("name").Text();
  if (name == "wait") return kWait;
  for (const char* collective :
       {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"}) {
    if (name == collective) return kCollective;
  }
  const auto args = event.Find("args");
  if (const auto pass = args ? args->Find("pass") : std::nullopt) {
    for (size_t kind = 0; kind < kCollective; ++kind) {
      if (pass->Text() == kKinds[kind].name) return kind;
    }
  }
  return kOther;
}

void Read(const JsonValue& trace, Step& step) {
  std::map<int64_t, std::string> names;
  double begin = std::numeric_limits<double>::infinity();
  const std::vector<JsonValue> events = trace.At("traceEvents").Elements();
  for (const JsonValue& event : events) {
    if (!event.At("ph").IsText("M") && event.Has("ts")) {
      begin = std::min(begin, event.At("ts").Number());
    }
  }
  for (const JsonValue& event : events) {
    const std::string& kind = event.At("ph").Text();
    if (kind == "M" && event.At("name").IsText("thread_name")) {
      const std::string& name = event.At("args").At("name").Text();
      names[event.At("tid").Integer()] = name;
      step.streams.push_back(name);
    } else if (kind == "X") {
      const double from = (event.At("ts").Number() - begin) * 1e-6;
      const double to = from + event.At("dur").Number() * 1e-6;
      step.work[names[event.At("tid").Integer()]][KindOf(event)].emplace_back(from, to);
      step.seconds = std::max(step.seconds, to);
    } else if (kind == "C") {
      const double at = (event.At("ts").Number() - begin) * 1e-6;
      for (const auto& [name, bytes] : event.At("args").Members()) {
        step.memory[name].push_back({at, bytes.Number()});
      }
      step.seconds = std::max(step.seconds, at);
    }
  }
}

Step StepOf(const std::string& directory) {
  Step step;
  step.directory = directory;
  const fs::path traces = fs::path(directory) / "traces";
  try {
    const std::optional<TraceTimes> times = ReadTraces(traces.string());
    if (!times || times->files.empty()) {
      step.why_not = "has no trace that can be read: log.trace_steps makes some";
      return step;
    }
    step.file = times->files.back();
    Read(ParseJson(ReadWholeFile((traces / step.file).string(), kMaxBytes), "", {}), step);
  } catch (const std::exception& error) {
    step.why_not = error.what();
  }
  return step;
}

std::string Number(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

std::string BarsOf(Stretches stretches, double y, double scale, std::string_view colour) {
  std::sort(stretches.begin(), stretches.end());
  std::string path;
  for (size_t i = 0; i < stretches.size();) {
    const double from = stretches[i].first * scale;
    double to = from;
    while (i < stretches.size() && stretches[i].first * scale - to <= kGap) {
      to = std::max(to, stretches[i++].second * scale);
    }
    path += "M" + Number(from) + " " + Number(y) + "H" + Number(std::max(to, from + kGap)) + "v" +
            Number(kBar) + "H" + Number(from) + "z";
  }
  if (path.empty()) return "";
  return "<path style=\"fill:" + std::string(colour) + "\" d=\"" + path + "\"/>";
}

std::string MemoryOf(const Step& step, double y, double scale, double most) {
  std::string html = "<text x=\"0\" y=\"" + Number(y + 12) + "\">memory, up to " +
                     HumanBytes(static_cast<int64_t>(most)) + "</text>";
  for (const auto& [name, points] : step.memory) {
    std::string path;
    const auto draw = [&](double x, double bytes) {
      const double height = y + kMemory - bytes / most * (kMemory - 16);
      path += (path.empty() ? "M" : "H") + Number(x) + (path.empty() ? " " : "V") + Number(height);
    };
    for (size_t i = 0; i < points.size();) {  // Points that are one: their highest, then the last.
      const double x = points[i].x * scale;
      double highest = 0;
      for (; i < points.size() && points[i].x * scale - x < kGap; ++i) {
        highest = std::max(highest, points[i].y);
      }
      draw(x, highest);
      if (points[i - 1].y < highest) draw(x + kGap, points[i - 1].y);
    }
    if (!points.empty()) path += "H" + Number(step.seconds * scale);
    const bool reserved = name == "reserved";
    html += "<path style=\"fill:none;stroke:" + std::string(reserved ? "#999" : "#2b5f9e") +
            "\" d=\"" + path + "\"><title>" + EscapeHtml(name) + "</title></path>";
  }
  return html;
}

std::string PictureOf(const Step& step, double longest, double most) {
  std::string html = "<h3>" + EscapeHtml(step.directory) + "</h3>\n";
  if (!step.why_not.empty()) return html + "<p>" + EscapeHtml(step.why_not) + "</p>\n";
  html += "<p class=\"dim\">traces/" + EscapeHtml(step.file) + ", " + Number(step.seconds) + " s" +
          (IsSimulated(step.directory) ? ", simulated" : "") + "</p>\n";
  const double scale = longest > 0 ? kWidth / longest : 0;
  double y = 4;
  std::string inside;
  for (const std::string& stream : step.streams) {
    const auto at = step.work.find(stream);
    if (at == step.work.end()) continue;
    inside += "<text x=\"0\" y=\"" + Number(y + 9) + "\">" + EscapeHtml(stream) + "</text>";
    y += 12;
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
      inside += BarsOf(at->second[kind], y, scale, kKinds[kind].colour);
    }
    y += kRow;
  }
  if (!step.memory.empty()) {
    inside += MemoryOf(step, y, scale, most);
    y += kMemory;
  }
  return html + "<svg viewBox=\"0 0 1000 " + Number(y + 4) +
         "\" width=\"100%\" font-size=\"10\" fill=\"currentColor\" role=\"img\" aria-label=\"a "
         "step\">" +
         inside + "</svg>\n";
}

}  // namespace

bool IsSimulated(const std::string& directory) {
  std::error_code none;
  return fs::exists(fs::path(directory) / "simulate.json", none) &&
         !fs::exists(fs::path(directory) / "metrics.jsonl", none);
}

std::string StepPictures(const std::vector<std::string>& directories) {
  std::vector<Step> steps;
  double longest = 0, most = 0;
  for (const std::string& directory : directories) {
    steps.push_back(StepOf(directory));
    const Step& step = steps.back();
    if (IsSimulated(directory) && !step.why_not.empty()) {
      throw CheckpointError(directory + ": " + step.why_not);
    }
    longest = std::max(longest, step.seconds);
    for (const auto& [name, points] : step.memory) {
      for (const Point& point : points) most = std::max(most, point.y);
    }
  }
  std::string html =
      "<h2>A step</h2>\n<p class=\"dim\">Streams and host over time, 0 to " + Number(longest) +
      " s.</p>\n<svg width=\"0\" height=\"0\"><defs><pattern id=\"hatched\" width=\"4\" "
      "height=\"4\" "
      "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><path d=\"M0 0V4\" "
      "style=\"stroke:#b33;stroke-width:1.5\"/></pattern></defs></svg>\n<p>";
  for (const Kind& kind : kKinds) {
    html += "<svg width=\"12\" height=\"12\"><rect width=\"12\" height=\"12\" style=\"fill:" +
            std::string(kind.colour) + "\"/></svg> " + std::string(kind.name) + " ";
  }
  html += "</p>\n";
  for (const Step& step : steps) html += PictureOf(step, longest, most);
  return html;
}

}  // namespace fsdp
