#include "trainer/observe/report/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "trainer/core/atomic_file.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/units.h"
#include "trainer/observe/build_info.h"
#include "trainer/observe/provenance.h"
#include "trainer/observe/report/expert_map.h"
#include "trainer/observe/report/page_files.h"
#include "trainer/observe/report/plot.h"
#include "trainer/observe/report/run_history.h"
#include "trainer/observe/report/traces.h"

namespace fsdp {
namespace {

std::string Format(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), format, value);
  return buffer;
}

// "1 run", "1,234 runs".
std::string CountOf(int64_t count, const std::string& what) {
  return Grouped(count) + " " + what + (count == 1 ? "" : "s");
}

std::string Times(int64_t count) { return count == 1 ? "once" : Grouped(count) + " times"; }

std::string Class(int colour) { return "c" + std::to_string(colour % kColours); }

// The labels that tell runs apart: names, or directories where names repeat.
std::vector<std::string> Labels(const std::vector<RunHistory>& runs) {
  std::map<std::string, int> uses;
  for (const RunHistory& run : runs) ++uses[run.name];
  std::vector<std::string> labels;
  for (const RunHistory& run : runs) {
    labels.push_back(uses[run.name] > 1 ? run.directory : run.name);
  }
  return labels;
}

std::string Swatch(size_t run, const std::string& text) {
  return "<span class=\"" + Class(static_cast<int>(run)) + "\"><i class=\"swatch\"></i>" +
         EscapeHtml(text) + "</span>";
}

std::string StateOf(const RunHistory& run) {
  if (!run.end) return "no end yet: running, or killed";
  return *run.end == "done" ? "done" : "ended: " + *run.end;
}

std::string LastOf(const Series& series) {
  return series.empty() ? "–" : FixedPoint(series.last().y, 4);
}

std::string BestOf(const Series& series) {
  if (series.empty()) return "–";
  const std::vector<Point> points = series.Extremes();
  const auto best = std::min_element(points.begin(), points.end(),
                                     [](const Point& a, const Point& b) { return a.y < b.y; });
  return FixedPoint(best->y, 4) + " at step " + Grouped(static_cast<int64_t>(best->x));
}

// "2026-01-31 23:59 UTC" for "2026-01-31T23:59:59Z".
std::string DateOf(const std::string& utc) {
  if (utc.size() != 20 || utc[10] != 'T' || utc[19] != 'Z') return utc;
  return utc.substr(0, 10) + " " + utc.substr(11, 5) + " UTC";
}

struct Fact {
  std::string name, value;  // Plain text.
};
std::vector<Fact> FactsOf(const RunHistory& run) {
  std::vector<Fact> facts;
  facts.push_back({"state", StateOf(run)});
  facts.push_back({"step", Grouped(run.last_step) +
                               (run.steps > 0 ? " of " + Grouped(run.steps) : std::string())});
  const std::vector<Point> smooth = run.loss.Smoothed();
  facts.push_back({smooth.empty() ? "loss, last record" : "loss, smoothed",
                   smooth.empty() ? LastOf(run.loss) : FixedPoint(smooth.back().y, 4)});
  for (const auto& [name, series] : run.evals) {
    facts.push_back({name.empty() ? "best evaluation" : "best on " + name, BestOf(series)});
  }
  const std::string unit = run.of_samples ? "samples" : "tokens";
  facts.push_back({unit, run.tokens > 0 ? HumanCount(run.tokens) : "–"});
  facts.push_back({unit + " a second, mean",
                   run.step_seconds > 0 ? HumanCount(run.step_tokens / run.step_seconds) : "–"});
  facts.push_back({"time recorded", HumanDuration(run.WholeTime())});
  facts.push_back(
      {"parameters", run.parameters > 0 ? HumanCount(static_cast<double>(run.parameters)) : "–"});
  if (!run.starts.empty()) {
    const RunHistory::Start& start = run.starts.back();
    facts.push_back({"ranks", Grouped(start.world_size) + " × " + CountOf(start.threads, "thread") +
                                  ", " + start.device});
    facts.push_back({"started", DateOf(run.starts.front().started)});
    if (run.num_starts > 1) facts.push_back({"started again", Times(run.num_starts - 1)});
  }
  return facts;
}

std::string Tiles(const RunHistory& run) {
  std::string html = "<div class=\"tiles\">";
  for (const Fact& fact : FactsOf(run)) {
    html += "<div class=\"tile\"><span>" + EscapeHtml(fact.name) + "</span><b>" +
            EscapeHtml(fact.value) + "</b></div>";
  }
  return html + "</div>\n";
}

// Rows of keys, a column for each run; a key that a run lacks is "–".
struct Table {
  std::vector<std::string> keys;
  std::map<std::string, std::vector<std::optional<std::string>>> cells;
};
Table TableOf(size_t runs, const std::function<FlatText(size_t)>& column) {
  Table table;
  for (size_t r = 0; r < runs; ++r) {
    size_t behind = 0;  // New keys go behind the one that precedes them in their own run.
    for (const auto& [key, value] : column(r)) {
      auto [at, fresh] = table.cells.try_emplace(key);
      if (fresh) {
        at->second.resize(runs);
        table.keys.insert(table.keys.begin() + static_cast<std::ptrdiff_t>(behind), key);
      }
      at->second[r] = value;
      behind = static_cast<size_t>(std::find(table.keys.begin(), table.keys.end(), key) -
                                   table.keys.begin()) +
               1;
    }
  }
  return table;
}

bool Differs(const std::vector<std::optional<std::string>>& cells) {
  return std::any_of(cells.begin(), cells.end(), [&](const auto& c) { return c != cells[0]; });
}

enum class Rows { kAll, kDiffering, kAllMarked };  // kAllMarked: those that differ stand out.
std::string ToHtml(const Table& table, const std::vector<std::string>& labels, Rows which) {
  std::string rows;
  for (const std::string& key : table.keys) {
    const auto& cells = table.cells.at(key);
    const bool differs = Differs(cells);
    if (which == Rows::kDiffering && !differs) continue;
    rows += differs && which == Rows::kAllMarked ? "<tr class=\"differs\">" : "<tr>";
    rows +=
        std::string(which == Rows::kAll ? "<td>" : "<td class=\"k\">") + EscapeHtml(key) + "</td>";
    for (const auto& cell : cells) {
      rows += std::string(which == Rows::kAll ? "<td>" : "<td class=\"v\">") +
              (cell ? EscapeHtml(*cell) : std::string("–")) + "</td>";
    }
    rows += "</tr>\n";
  }
  if (rows.empty()) return "";
  std::string html = "<div class=\"scroll\"><table>";
  if (labels.size() > 1) {
    html += "<thead><tr><th></th>";
    for (size_t r = 0; r < labels.size(); ++r) html += "<th>" + Swatch(r, labels[r]) + "</th>";
    html += "</tr></thead>";
  }
  return html + "<tbody>" + rows + "</tbody></table></div>\n";
}

std::string Folded(const std::string& title, const std::string& html) {
  if (html.empty()) return "";
  return "<details><summary>" + title + "</summary>" + html + "</details>\n";
}

// ---- Time by phase.

struct PartShown {
  std::string_view part;
  const char *colour, *text;
};
constexpr PartShown kPartsShown[] = {
    {"data", "c6", "waiting for data"},       {"forward", "c0", "forward"},
    {"recompute", "c5", "recomputation"},     {"backward", "c3", "backward"},
    {"optimizer", "c2", "optimizer"},         {"communication", "c1", "waiting for communication"},
    {"offload", "c9", "waiting for offload"}, {"other", "ct", "between steps"},
    {"evaluation", "c7", "evaluation"},       {"sampling", "c4", "sampling"},
    {"checkpoint", "c8", "checkpoints"},
};
static_assert(std::ranges::equal(kPartsShown, kRunParts, {}, &PartShown::part));

// A bar of `seconds`, `whole` being the full width.
std::string Bar(const std::array<double, kRunParts.size()>& seconds, double whole) {
  std::string html = "<div class=\"bar\">";
  for (size_t i = 0; i < kRunParts.size(); ++i) {
    const double share = 100 * seconds[i] / whole;
    if (share < 0.05) continue;
    html += std::string("<i class=\"") + kPartsShown[i].colour +
            "\" style=\"width:" + Format("%.2f", share) + "%\" title=\"" + kPartsShown[i].text +
            ": " + Format("%.1f", share) + " %\"></i>";
  }
  return html + "</div>";
}

std::string Phases(const std::vector<RunHistory>& runs, const std::vector<std::string>& labels) {
  std::string bars, head, rows;
  std::vector<size_t> shown;
  for (size_t r = 0; r < runs.size(); ++r) {
    if (runs[r].has_parts && runs[r].WholeTime() > 0) shown.push_back(r);
  }
  if (shown.empty()) return "";
  for (const size_t r : shown) {
    double whole = 0;
    for (const double seconds : runs[r].seconds) whole += seconds;
    if (runs.size() > 1) bars += "<p>" + Swatch(r, labels[r]) + "</p>";
    bars += Bar(runs[r].seconds, whole);
    head += "<th class=\"n\" colspan=\"2\">" +
            (runs.size() > 1 ? Swatch(r, labels[r]) : std::string("whole run")) + "</th>";
  }
  for (size_t i = 0; i < kRunParts.size(); ++i) {
    std::string cells;
    bool any = false;
    for (const size_t r : shown) {
      double whole = 0;
      for (const double seconds : runs[r].seconds) whole += seconds;
      any |= runs[r].seconds[i] > 0;
      cells += "<td class=\"n\">" + HumanDuration(runs[r].seconds[i]) + "</td><td class=\"n\">" +
               Format("%.1f", 100 * runs[r].seconds[i] / whole) + " %</td>";
    }
    if (!any) continue;
    rows += std::string("<tr><td><span class=\"") + kPartsShown[i].colour +
            "\"><i class=\"swatch\"></i>" + kPartsShown[i].text + "</span></td>" + cells +
            "</tr>\n";
  }
  return "<h2>Time by phase</h2>\n<p class=\"dim\">Rank 0, from events on its compute stream. "
         "What overlaps with compute counts as compute; waiting is what does not.</p>\n" +
         bars + "<div class=\"scroll\"><table><thead><tr><th></th>" + head +
         "</tr></thead><tbody>" + rows + "</tbody></table></div>\n";
}

std::string Traced(const TraceTimes& times) {
  constexpr size_t kRows = 15;
  std::string rows;
  for (size_t i = 0; i < std::min(kRows, times.operations.size()); ++i) {
    const TraceTimes::Operation& o = times.operations[i];
    rows += "<tr><td class=\"w\">" + EscapeHtml(o.name) + "</td><td>" + EscapeHtml(o.stream) +
            "</td><td class=\"n\">" + HumanDuration(o.seconds) + "</td><td class=\"n\">" +
            (times.seconds > 0 ? Format("%.1f", 100 * o.seconds / times.seconds) + " %" : "–") +
            "</td><td class=\"n\">" + Format("%.4g", o.count) + "</td></tr>\n";
  }
  std::string files;
  for (const std::string& file : times.files) files += (files.empty() ? "" : ", ") + file;
  return "<p class=\"dim\">" + EscapeHtml(files) + ": " + HumanDuration(times.seconds) +
         " a step while traced; the " + std::to_string(std::min(kRows, times.operations.size())) +
         " longest of " + CountOf(static_cast<int64_t>(times.operations.size()), "operation") +
         ".</p><div class=\"scroll\"><table><thead><tr><th>operation</th><th>stream</th><th "
         "class=\"n\">time a step</th><th class=\"n\">of the step</th><th "
         "class=\"n\">calls</th></tr>"
         "</thead><tbody>" +
         rows + "</tbody></table></div>\n";
}

// ---- The rest.

std::string Samples(const RunHistory& run) {
  std::string html;
  for (auto sample = run.samples.rbegin(); sample != run.samples.rend(); ++sample) {
    html += "<h3>Step " + Grouped(sample->step) + "</h3><pre><b>" + EscapeHtml(sample->prompt) +
            "</b>" + EscapeHtml(sample->text) + "</pre>\n";
  }
  return html;
}

std::string HowItBegan(const RunHistory::Start& start) {
  if (start.resumed_from.empty()) return "from the beginning";
  std::string html =
      "resumed at step " + Grouped(start.resumed_step) + " from " + EscapeHtml(start.resumed_from);
  for (const std::string& change : start.recipe_changed) html += "<br>" + EscapeHtml(change);
  return html;
}

std::string Starts(const RunHistory& run) {
  std::string rows;
  for (const RunHistory::Start& start : run.starts) {
    rows += "<tr><td>" + EscapeHtml(DateOf(start.started)) + "</td><td>" + HowItBegan(start) +
            "</td><td class=\"n\">" + Grouped(start.world_size) + " × " + Grouped(start.threads) +
            "</td><td>" + EscapeHtml(start.version + " " + start.git.substr(0, 12)) +
            "</td></tr>\n";
  }
  std::string html =
      "<div class=\"scroll\"><table><thead><tr><th>start</th><th></th><th class=\"n\">ranks × "
      "threads</th><th>build</th></tr></thead><tbody>" +
      rows + "</tbody></table></div>\n";
  if (run.checkpoints.count() > 0) {
    html += "<p>" + CountOf(run.checkpoints.count(), "checkpoint") + ", the last at step " +
            Grouped(static_cast<int64_t>(run.checkpoints.last().x)) + ".</p>\n";
  }
  if (run.num_incidents > 0) {
    html += "<p>" + CountOf(run.num_incidents, "incident") + ":</p><ul>";
    for (const RunHistory::Incident& incident : run.incidents) {
      html += "<li>step " + Grouped(incident.step) + ": " + EscapeHtml(incident.what) + "</li>";
    }
    html += "</ul>\n";
  }
  return html;
}

std::string Notes(const RunHistory& run) {
  std::vector<std::string> notes;
  if (run.broken > 0) {
    notes.push_back(CountOf(run.broken, "broken line") + " of metrics.jsonl " +
                    (run.broken == 1 ? "is" : "are") + " left out.");
  }
  if (run.unfinished) notes.push_back("The last line of metrics.jsonl is unfinished and left out.");
  if (run.loss.empty()) notes.push_back("No step is recorded yet.");
  notes.insert(notes.end(), run.notes.begin(), run.notes.end());
  std::string html;
  for (const std::string& note : notes) html += "<p>" + EscapeHtml(note) + "</p>";
  return html.empty() ? "" : "<div class=\"note\">" + html + "</div>\n";
}

// To the begin of the body. Nothing is fetched, whatever the page may come to hold.
std::string HeadOf(std::string_view title) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
         "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
         "'unsafe-inline'; script-src 'unsafe-inline'\">\n<meta name=\"viewport\" "
         "content=\"width=device-width, initial-scale=1\">\n<title>" +
         EscapeHtml(title) + " – fsdp-train</title>\n<style>\n" + kPageCss +
         "</style>\n</head>\n<body>\n";
}

// The page must not take the place of what it is made of, and of what a run goes on from.
void RefuseFilesOfRuns(const std::string& out, const std::vector<std::string>& directories) {
  std::error_code ignored;
  const std::filesystem::path page = std::filesystem::weakly_canonical(out, ignored);
  for (const std::string& directory : directories) {
    const std::filesystem::path run = std::filesystem::weakly_canonical(directory, ignored);
    const std::filesystem::path inside = page.lexically_relative(run);
    for (const char* name : {"simulate.json", "traces", "metrics.jsonl", "recipe.yaml",
                             "provenance.json", "checkpoints"}) {
      if (inside.empty() || *inside.begin() != name) continue;
      throw CheckpointError(out + ": is the run's own, not a page: give another name");
    }
  }
}

}  // namespace

std::string StaticPage(std::string_view title, const std::string& body) {
  return HeadOf(title) + body + "</body>\n</html>\n";
}

// At most 28 bytes a point in JSON, four points a bucket, a dozen curves a run.
size_t ReportBuckets(size_t runs) {
  constexpr size_t kBytes = 2'300'000, kBytesOfBucket = 4 * 28 * 12;
  const size_t buckets = kBytes / kBytesOfBucket / std::max<size_t>(1, runs);
  return std::clamp<size_t>(buckets, 40, 500) / 2 * 2;
}

std::string ReportPage(const std::vector<RunHistory>& runs, std::string_view made,
                       const std::string& pictures) {
  FSDP_CHECK(!runs.empty());
  const std::vector<std::string> labels = Labels(runs);
  const bool several = runs.size() > 1;
  std::string title;
  for (size_t r = 0; r < std::min<size_t>(3, runs.size()); ++r) {
    title += (r == 0 ? "" : ", ") + labels[r];
  }
  if (runs.size() > 3) title += " and " + std::to_string(runs.size() - 3) + " more";

  std::string html = HeadOf(title) + "<h1>" + EscapeHtml(title) + "</h1>\n";
  for (size_t r = 0; r < runs.size(); ++r) {
    const std::string notes = Notes(runs[r]);
    if (several && !notes.empty()) html += "<h3>" + Swatch(r, labels[r]) + "</h3>\n";
    if (!several) {
      html += "<p class=\"dim\"><code>" + EscapeHtml(runs[r].directory) + "</code></p>\n" +
              Tiles(runs[r]);
    }
    html += notes;
  }
  if (several) {
    const Table facts = TableOf(runs.size(), [&](size_t r) {
      FlatText column = {{"directory", runs[r].directory}};
      for (const Fact& fact : FactsOf(runs[r])) column.emplace_back(fact.name, fact.value);
      return column;
    });
    html += ToHtml(facts, labels, Rows::kAll);
    const Table recipes = TableOf(runs.size(), [&](size_t r) { return runs[r].recipe; });
    const std::string differences = ToHtml(recipes, labels, Rows::kDiffering);
    html += "<h2>What their recipes differ in</h2>\n" +
            (differences.empty() ? std::string("<p>Nothing.</p>\n") : differences);
  }

  html += pictures;
  html +=
      "<h2>Curves</h2>\n<p class=\"dim\"><span id=\"over\">Over steps.</span> Thinned where there "
      "are more points than can be shown: every peak and every low is kept.</p>\n" +
      PlotsToHtml(PlotsOf(runs, labels)) + Phases(runs, labels);

  const auto each = [&](const char* heading, const std::function<std::string(size_t)>& of) {
    std::string all;
    for (size_t r = 0; r < runs.size(); ++r) {
      const std::string one = of(r);
      if (one.empty()) continue;
      all += several ? "<h3>" + Swatch(r, labels[r]) + "</h3>\n" + one : one;
    }
    if (!all.empty()) html += std::string("<h2>") + heading + "</h2>\n" + all;
  };
  each("Operations of traced steps",
       [&](size_t r) { return runs[r].traced ? Traced(*runs[r].traced) : std::string(); });
  each("Loads of experts", [&](size_t r) { return ExpertMap(runs[r].loads); });
  each("Samples", [&](size_t r) {
    const RunHistory& run = runs[r];
    if (run.samples.empty()) return std::string();
    const size_t shown = run.samples.size();
    RunHistory::Sample last = run.samples.back();
    std::string text = "<pre><b>" + EscapeHtml(last.prompt) + "</b>" + EscapeHtml(last.text) +
                       "</pre><p class=\"dim\">At step " + Grouped(last.step) + ".</p>";
    if (shown == 1) return text;
    const bool left_out = run.num_samples > static_cast<int64_t>(shown);
    return text + Folded(left_out ? "The first and the last " + std::to_string(shown - 1) + " of " +
                                        CountOf(run.num_samples, "sample")
                                  : "All " + CountOf(run.num_samples, "sample"),
                         Samples(run));
  });
  each("Starts and checkpoints", [&](size_t r) { return Starts(runs[r]); });

  const Table recipes = TableOf(runs.size(), [&](size_t r) { return runs[r].recipe; });
  const Table provenance = TableOf(runs.size(), [&](size_t r) { return runs[r].provenance; });
  html += "<h2>Recipe and provenance</h2>\n" +
          Folded("recipe.yaml, " + CountOf(static_cast<int64_t>(recipes.keys.size()), "key"),
                 ToHtml(recipes, labels, Rows::kAllMarked)) +
          Folded("provenance.json", ToHtml(provenance, labels, Rows::kAllMarked));
  return html + "<footer>" + EscapeHtml(made) + "</footer>\n</body>\n</html>\n";
}

WrittenReport WriteReport(const std::vector<std::string>& directories, std::string out) {
  if (directories.empty()) throw std::invalid_argument("[WriteReport] want a run directory");
  std::vector<RunHistory> runs;
  WrittenReport report;
  bool simulated = false;
  for (const std::string& directory : directories) {
    if (IsSimulated(directory)) {
      simulated = true;
      continue;
    }
    runs.push_back(ReadRun(directory, ReportBuckets(directories.size())));
    report.records += runs.back().records;
    report.broken += runs.back().broken + (runs.back().unfinished ? 1 : 0);
  }
  const WriteTo to = out.empty() ? WriteTo::kFile : WriteTo::kPipeToo;
  report.path = out.empty() ? directories[0] + "/report.html" : std::move(out);
  RefuseFilesOfRuns(report.path, directories);
  const std::string made = "fsdp-train " + std::string(BuildVersion()) + " (" +
                           std::string(BuildGitHash()) + "), " + UtcNow();
  const std::string pictures = simulated ? StepPictures(directories) : "";
  const std::string page =
      runs.empty() ? StaticPage("Simulated steps", "<h1>Simulated steps</h1>\n" + pictures +
                                                       "<footer>" + made + "</footer>\n")
                   : ReportPage(runs, made, pictures);
  WriteAtomicFile(report.path, page, to);
  report.bytes = static_cast<int64_t>(page.size());
  return report;
}

}  // namespace fsdp
