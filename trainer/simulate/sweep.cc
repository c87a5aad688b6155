#include "trainer/simulate/sweep.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/json.h"
#include "trainer/core/terminal.h"
#include "trainer/core/units.h"
#include "trainer/engine/plan.h"
#include "trainer/loop/place.h"
#include "trainer/loop/plan_heading.h"
#include "trainer/loop/resolve.h"
#include "trainer/observe/report/plot.h"
#include "trainer/observe/report/report.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/simulate/simulate.h"

namespace fsdp {
namespace {

constexpr std::string_view kWorld = "world_size";
constexpr int kMostWorld = 1 << 20;
constexpr char kMisfit[] = "does not fit";

struct SweptJob {
  std::vector<std::string> values;
  Recipe recipe;
  int world = 1, local_world = 1;
};

struct Row {
  std::vector<std::string> values;
  RunPlan plan;
  std::optional<StepEstimate> estimate;  // Empty: it does not fit.
};

std::string Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(' ') - begin + 1));
}

std::vector<std::string> SplitValues(std::string_view text) {
  std::vector<std::string> values(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    }
    if (c == ',' && depth == 0 && quote == 0) {
      values.emplace_back();
    } else {
      values.back() += c;
    }
  }
  for (std::string& value : values) value = Trimmed(value);
  return values;
}

std::optional<double> NumberOf(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  const bool finite = error == std::errc() && at == end && std::isfinite(number);
  return finite ? std::optional(number) : std::nullopt;
}

int WorldOf(const std::string& value) {
  const std::optional<double> world = NumberOf(value);
  if (!world || *world < 1 || *world > kMostWorld || *world != std::floor(*world)) {
    throw ConfigError("--sweep world_size: " + value + ", want a number of ranks from 1 to " +
                      std::to_string(kMostWorld));
  }
  return static_cast<int>(*world);
}

std::string NameOf(const Sweep& sweep, const std::vector<std::string>& values) {
  std::string name;
  for (size_t i = 0; i < values.size(); ++i) {
    name += (i > 0 ? " " : "") + sweep.keys[i].key + "=" + values[i];
  }
  return name;
}

// Every mistake comes out here.
std::vector<SweptJob> JobsOf(const Sweep& sweep, const Hardware& hardware) {
  std::vector<SweptJob> jobs;
  for (std::vector<std::string>& values : SweptPoints(sweep.keys)) {
    int world = sweep.world;
    std::vector<std::string> settings;
    for (size_t i = 0; i < values.size(); ++i) {
      if (sweep.keys[i].key == kWorld) {
        world = WorldOf(values[i]);
      } else {
        settings.push_back(sweep.keys[i].key + "=" + values[i]);
      }
    }
    try {
      Recipe recipe = sweep.recipe(settings);
      const int local_world = LocalWorldFor(world, sweep.local_world, hardware);
      CheckWorld(recipe, world, local_world);
      jobs.push_back({std::move(values), std::move(recipe), world, local_world});
    } catch (const ConfigError& error) {
      throw ConfigError("--sweep, " + NameOf(sweep, values) + ": " + error.what());
    }
  }
  return jobs;
}

Row Simulated(const Sweep& sweep, const Hardware& hardware, const SweptJob& job) {
  ResolvedRun run = Resolve(
      job.recipe, PlaceToPlan(job.recipe, job.world, job.local_world, hardware, sweep.expert_load));
  const auto simulation = SimulateAndPlan(run, hardware, sweep.options);
  std::optional<StepEstimate> estimate;
  if (simulation) estimate = EstimateOf(run, hardware, *simulation);
  return {job.values, std::move(run.plan), std::move(estimate)};
}

std::string Format(const char* format, double value) {
  char text[40];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

double GiB(int64_t bytes) { return static_cast<double>(bytes) * 0x1p-30; }

struct Column {
  const char* name;   // sweep.csv's.
  const char* title;  // People's, and the unit, which may be "".
  const char* unit;
  const char* format;
  double (*value)(const Row& row);
  bool timed = true;  // Known where the step is.
};

// Memory: what is planned, and what a caching allocator reserves.
constexpr Column kColumns[] = {
    {"step_time_s", "step", "s", "%.4g", [](const Row& r) { return r.estimate->step_time_s; }},
    {"tokens_per_s", "tokens/s", "", "%.0f",
     [](const Row& r) { return r.estimate->counted_per_s; }},
    {"hardware_tflops", "hardware", "TFLOP/s", "%.1f",
     [](const Row& r) { return r.estimate->hardware_tflops_per_device; }},
    {"model_tflops", "model", "TFLOP/s", "%.1f",
     [](const Row& r) { return r.estimate->tflops_per_device; }},
    {"exposed_s", "waiting for ranks", "s", "%.4g",
     [](const Row& r) { return r.estimate->exposed_s; }},
    {"planned_gib", "planned", "GiB", "%.2f", [](const Row& r) { return GiB(r.plan.planned()); },
     false},
    {"reserved_gib", "reserved", "GiB", "%.2f",
     [](const Row& r) { return GiB(r.plan.statistics().reserved.peak); }, false},
    {"retries", "retries", "", "%.0f",
     [](const Row& r) { return static_cast<double>(r.plan.statistics().retries); }, false},
    {"idle_ranks", "idle ranks", "", "%.0f",
     [](const Row& r) { return static_cast<double>(r.plan.idle_ranks); }, false},
};

// A head and a line for each row, the last cell of which is whether it fits. The words of a program
// that reads them, or of people.
std::vector<std::vector<std::string>> Cells(const Sweep& sweep, const std::vector<Row>& rows,
                                            bool for_people) {
  std::vector<std::vector<std::string>> cells(1);
  for (const SweptKey& key : sweep.keys) cells[0].push_back(key.key);
  for (const Column& column : kColumns) {
    const std::string unit = *column.unit == 0 ? "" : std::string(", ") + column.unit;
    cells[0].push_back(for_people ? column.title + unit : column.name);
  }
  cells[0].emplace_back("fits");
  const char* const misfit = for_people ? kMisfit : "no";
  for (const Row& row : rows) {
    std::vector<std::string> line = row.values;
    for (const Column& column : kColumns) {
      const bool known = row.estimate || !column.timed;
      line.push_back(known ? Format(column.format, column.value(row)) : "");
    }
    line.emplace_back(row.plan.fits() ? "yes" : misfit);
    cells.push_back(std::move(line));
  }
  return cells;
}

std::string TextOf(const std::vector<std::vector<std::string>>& cells) {
  std::vector<size_t> widths(cells[0].size());
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max({widths[i], line[i].size(), size_t{1}});
    }
  }
  std::string text;
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string cell = line[i].empty() ? "-" : line[i];
      text += (i > 0 ? "  " : "") + std::string(widths[i] - cell.size(), ' ') + cell;
    }
    text += "\n";
  }
  return text;
}

std::string CsvOf(const std::vector<std::vector<std::string>>& cells) {
  std::string text;
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) {
      std::string cell = line[i];
      if (cell.find_first_of(",\"\n") != std::string::npos) {
        for (size_t at = 0; (at = cell.find('"', at)) != std::string::npos; at += 2) {
          cell.insert(at, 1, '"');
        }
        cell.insert(0, 1, '"').append(1, '"');
      }
      text += (i > 0 ? "," : "") + cell;
    }
    text += "\n";
  }
  return text;
}

std::string JsonOf(const Sweep& sweep, const std::vector<Row>& rows) {
  std::vector<std::string> objects;
  for (const Row& row : rows) {
    JsonObject swept;
    for (size_t i = 0; i < row.values.size(); ++i) {
      const std::optional<double> number = NumberOf(row.values[i]);
      const bool whole = number && std::abs(*number) < 0x1p53 && *number == std::floor(*number);
      if (whole) {
        swept.Add(sweep.keys[i].key, static_cast<int64_t>(*number));
      } else if (number) {
        swept.Add(sweep.keys[i].key, *number);
      } else {
        swept.Add(sweep.keys[i].key, row.values[i]);
      }
    }
    objects.push_back("{\"swept\": " + swept.Text() + ", " +
                      PlanToJson(row.plan, row.estimate).substr(1));
  }
  return JsonArray(objects) + "\n";
}

// The key along x: the first one with several values, all of them numbers.
std::optional<size_t> AlongX(const Sweep& sweep) {
  for (size_t i = 0; i < sweep.keys.size(); ++i) {
    const std::vector<std::string>& values = sweep.keys[i].values;
    const auto known = [](const std::string& value) { return NumberOf(value).value_or(-1) >= 0; };
    if (values.size() > 1 && std::all_of(values.begin(), values.end(), known)) return i;
  }
  return std::nullopt;
}

// Settings that do not fit are curves of their own, which have the colour of those that do.
Plot PlotOf(const Sweep& sweep, const std::vector<Row>& rows, const Column& column) {
  const std::optional<size_t> along = AlongX(sweep);
  Plot plot{.id = column.name,
            .title = column.title,
            .unit = column.unit,
            .curves = {},
            .may_be_log = false};
  std::vector<std::string> names;  // A setting's place here is its colour.
  for (size_t n = 0; n < rows.size(); ++n) {
    const Row& row = rows[n];
    if (column.timed && !row.estimate) continue;
    std::string name;
    for (size_t i = 0; i < row.values.size(); ++i) {
      if (!along || i == *along) continue;
      name += (name.empty() ? "" : " ") + sweep.keys[i].key + "=" + row.values[i];
    }
    const auto colour = std::find(names.begin(), names.end(), name) - names.begin();
    if (colour == std::ssize(names)) names.push_back(name);
    const bool fits = row.plan.fits();
    if (name.empty())
      name = fits ? "fits" : kMisfit;
    else if (!fits)
      name += std::string(", ") + kMisfit;
    auto curve = std::find_if(plot.curves.begin(), plot.curves.end(),
                              [&](const Curve& one) { return one.name == name; });
    if (curve == plot.curves.end()) {
      plot.curves.push_back({.name = name,
                             .colour = static_cast<int>(colour) % kColours,
                             .style = fits ? Curve::Style::kDots : Curve::Style::kHollow,
                             .points = {}});
      curve = plot.curves.end() - 1;
    }
    const double x = along ? *NumberOf(row.values[*along]) : static_cast<double>(n + 1);
    plot.max_x = std::max(plot.max_x, x);
    curve->points.push_back({x, column.value(row)});
  }
  for (Curve& curve : plot.curves) {
    std::sort(curve.points.begin(), curve.points.end(),
              [](const Point& a, const Point& b) { return a.x < b.x; });
  }
  return plot;
}

std::string HtmlOf(const Sweep& sweep, const std::vector<Row>& rows) {
  const std::optional<size_t> along = AlongX(sweep);
  const bool all =
      std::all_of(rows.begin(), rows.end(), [](const Row& r) { return r.plan.fits(); });
  std::string body = "<h1>Simulated steps</h1>\n<p>x: " +
                     (along ? EscapeHtml(sweep.keys[*along].key) : "the table's rows, from 1") +
                     (all ? "" : ". Hollow points and grey rows do not fit into memory.") +
                     "</p>\n";
  Plots plots{.plots = {}, .x = along ? sweep.keys[*along].key : "row", .runs = {}, .targets = ""};
  for (const Column& column : kColumns) plots.plots.push_back(PlotOf(sweep, rows, column));
  body += PlotsToHtml(plots) + "<table>\n";
  const auto cells = Cells(sweep, rows, /*for_people=*/true);
  for (size_t n = 0; n < cells.size(); ++n) {
    const std::string tag = n == 0 ? "th" : "td";
    body += n > 0 && !rows[n - 1].plan.fits() ? "<tr class=\"dim\">" : "<tr>";
    for (const std::string& cell : cells[n]) {
      body.append("<" + tag + ">").append(EscapeHtml(cell)).append("</" + tag + ">");
    }
    body += "</tr>\n";
  }
  return StaticPage("Simulated steps", body + "</table>\n");
}

}  // namespace

std::vector<SweptKey> SweptKeys(const std::vector<std::string>& flags) {
  std::vector<SweptKey> keys;
  std::set<std::string> seen;
  for (const std::string& flag : flags) {
    const size_t equals = flag.find('=');
    const std::string key = Trimmed(flag.substr(0, equals));
    if (key.empty()) throw ConfigError("--sweep " + flag + ": no key; want KEY=V1,V2");
    if (!seen.insert(key).second) throw ConfigError("--sweep " + key + ": is swept twice");
    SweptKey one{key, {}};
    if (equals != std::string::npos) one.values = SplitValues(flag.substr(equals + 1));
    for (const std::string& value : one.values) {
      if (value.empty()) one.values.clear();
      if (value.empty()) break;
    }
    if (one.values.empty()) {
      throw ConfigError("--sweep " + flag + ": a value is missing; want " + key + "=V1,V2");
    }
    keys.push_back(std::move(one));
  }
  return keys;
}

std::vector<std::vector<std::string>> SweptPoints(const std::vector<SweptKey>& keys) {
  std::vector<std::vector<std::string>> points(1);
  for (const SweptKey& key : keys) {
    std::vector<std::vector<std::string>> longer;
    for (const std::vector<std::string>& point : points) {
      for (const std::string& value : key.values) {
        longer.push_back(point);
        longer.back().push_back(value);
      }
    }
    points = std::move(longer);
  }
  return points;
}

void SimulateSweep(const Sweep& sweep, const Hardware& hardware) {
  const std::vector<SweptJob> jobs = JobsOf(sweep, hardware);
  if (!sweep.directory.empty()) {
    std::error_code error;
    std::filesystem::create_directories(sweep.directory, error);
    if (error) throw CheckpointError(sweep.directory + ": cannot be made: " + error.message());
  }
  std::string said;  // Once.
  std::vector<Row> rows;
  for (const SweptJob& job : jobs) {
    if (said.empty()) {
      said = NoteOnKernels(hardware, job.recipe.fsdp.mixed_precision.param_dtype);
      std::cerr << said;
    }
    {
      const ProgressLine line("simulating " + NameOf(sweep, job.values));
      rows.push_back(Simulated(sweep, hardware, job));
    }
    const Row& row = rows.back();
    const std::string unused = WhatIsUnused(job.recipe.train, job.world);
    std::cerr << rows.size() << " of " << jobs.size() << ": " << NameOf(sweep, job.values) << ": "
              << (row.estimate ? HumanDuration(row.estimate->step_time_s) : "")
              << (row.estimate && !row.plan.fits() ? ", " : "") << (row.plan.fits() ? "" : kMisfit)
              << (unused.empty() ? "" : "\n  warning: " + unused) << "\n";
  }
  const std::string json = JsonOf(sweep, rows);
  if (!sweep.directory.empty()) {
    const std::filesystem::path directory = sweep.directory;
    WriteAtomicFile((directory / "sweep.csv").string(),
                    CsvOf(Cells(sweep, rows, /*for_people=*/false)));
    WriteAtomicFile((directory / "sweep.json").string(), json);
    WriteAtomicFile((directory / "sweep.html").string(), HtmlOf(sweep, rows));
  }
  std::cout << (sweep.json ? json : TextOf(Cells(sweep, rows, /*for_people=*/true))) << std::flush;
}

}  // namespace fsdp
