#include "trainer/observe/report/plot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/json.h"
#include "tests/trainer/observe/report/run_directory_files.h"
#include "trainer/core/utf8.h"

namespace fsdp {
namespace {

using Json = testing::Json;
using Strings = std::vector<std::string>;

Plot LossPlot() {
  return {"loss", "Loss", "nats", {{"a", 0, Curve::Style::kLine, {{0, 4}, {50, 3}, {100, 2}}}},
          true,   true,   100};
}

std::string DataOf(const std::string& html) {
  const std::string begin = "id=\"data\">";
  const size_t at = html.find(begin) + begin.size();
  return html.substr(at, html.find("</script>", at) - at);
}

// The plots as page.js draws them, printed by page_stand_in.js.
Json Drawn(const Plots& plots, const std::string& actions = "") {
  const std::string page = ::testing::TempDir() + "/plots.html";
  Put(page, PlotsToHtml(plots));
  return Json::parse(PrintedByNode("page_stand_in.js " + page + " " + actions));
}
Json Drawn(const std::vector<Plot>& plots, const std::string& actions = "") {
  return Drawn(Plots{.plots = plots, .x = "step", .runs = {}, .targets = ""}, actions);
}

// Debian's nodejs, which tools/setup --tests installs.
class DrawnPlot : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(std::system("node --version > /dev/null 2>&1"), 0) << "no node: tools/setup --tests";
  }
};

TEST_F(DrawnPlot, TicksAreRoundAndLabelsShort) {
  struct Axis {
    double low, high;  // Its margins are 4 % of its length, or of its decades.
    bool logarithmic;
    Strings labels;
  };
  const std::vector<Axis> axes = {
      {0, 1, false, {"0", "0.5", "1"}},
      {9.8, 10.7, false, {"9.8", "10", "10.2", "10.4", "10.6"}},
      {-0.9, 0.9, false, {"-0.5", "0", "0.5"}},
      {0, 5000, false, {"0", "2000", "4000"}},
      {0, 40000, false, {"0", "10k", "20k", "30k", "40k"}},
      {0, 4e-4, false, {"0", "1e-4", "2e-4", "3e-4", "4e-4"}},
      {0, 4e18, false, {"0", "1e18", "2e18", "3e18", "4e18"}},
      {1, 100, true, {"1", "2", "5", "10", "20", "50", "100"}},
      {1, 10000, true, {"1", "10", "100", "1000", "10k"}},
      {2, 3, true, {"2", "2.5", "3"}},
  };
  std::vector<Plot> plots(axes.size(), LossPlot());
  std::string actions;
  for (size_t i = 0; i < axes.size(); ++i) {
    plots[i].from_zero = false;
    plots[i].curves[0].points = {{0, axes[i].low}, {1, axes[i].high}};
    if (axes[i].logarithmic) actions += " 'log " + std::to_string(i) + "'";
  }
  const Json drawn = Drawn(plots, actions);
  for (size_t i = 0; i < axes.size(); ++i) EXPECT_EQ(drawn[i]["ys"], axes[i].labels);
}

TEST_F(DrawnPlot, CurvesFillTheArea) {
  Plot plot = LossPlot();
  plot.from_zero = false;
  // 4 % of the range above and below: 2 to 4 becomes 1.92 to 4.08.
  Plot dots = plot, hollow = plot, one = plot;
  dots.curves[0].style = Curve::Style::kDots;
  hollow.curves[0].style = Curve::Style::kHollow;
  one.curves[0] = {"one", 0, Curve::Style::kLine, {{50, 7}}};
  one.curves.push_back({"resume", -1, Curve::Style::kMarks, {{50, 0}}});
  const Json all = Drawn({plot, dots, one, hollow}), drawn = all[0];
  EXPECT_EQ(drawn["strokes"], (Strings{"M0.0 37.0L500.0 500.0L1000.0 963.0"}));
  EXPECT_EQ(drawn["dots"], Strings());
  EXPECT_EQ(drawn["xs"], (Strings{"0", "50", "100"}));
  EXPECT_EQ(drawn["caption"], (Strings{"Loss", "nats"}));
  EXPECT_EQ(drawn["legend"], Strings{"a"});
  EXPECT_EQ(drawn["id"], "loss");
  EXPECT_EQ(drawn["log"], "false");
  EXPECT_EQ(all[1]["dots"], Strings{"M0.0 37.0h0M500.0 500.0h0M1000.0 963.0h0"});
  EXPECT_EQ(all[1]["holes"], Strings());
  EXPECT_EQ(all[2]["dots"], Strings{"M500.0 500.0h0"});
  EXPECT_EQ(all[3]["dots"], all[1]["dots"]);
  EXPECT_EQ(all[3]["holes"], all[1]["dots"]);
  EXPECT_EQ(all[3]["marks"], Strings{"hollow"});
  EXPECT_EQ(all[2]["strokes"][1], "M500.0 1000V0");
}

TEST_F(DrawnPlot, AnswersToThePointer) {
  Plots plots{.plots = {LossPlot()},
              .x = "step",
              .runs = {R"({"tokens": {"x":[100],"y":[1000]},"time":{"x":[50,100],"y":[5,20]}})"},
              .targets = "tokens"};
  plots.plots[0].curves.push_back({"b", 1, Curve::Style::kLine, {{0, 40}, {100, 30}}});
  Json drawn = Drawn(plots, "'hover 0 0.45'").at(0);
  EXPECT_EQ(drawn["tip"], "step 50a3b (step 0)40");
  drawn = Drawn(plots, "'curve 0 1' 'hover 0 0.45'").at(0);
  EXPECT_EQ(drawn["shown"], (Json{true, false}));
  EXPECT_EQ(drawn["tip"], "step 50a3");
  drawn = Drawn(plots, "'axis time'").at(0);
  EXPECT_EQ(drawn["over"], "Over the time that is recorded, in seconds.");
  EXPECT_EQ(drawn["xs"], (Strings{"0", "5", "10", "15", "20"}));
  EXPECT_TRUE(drawn["strokes"][0].get<std::string>().find("L250.0 ") != std::string::npos);
}

TEST_F(DrawnPlot, LabelsDifferWhereValuesHardlyDo) {
  std::vector<Plot> plots;
  for (const double spread : {0.0, 1e-9, 1e-4, 4e-3, 6e-3}) {
    plots.push_back(LossPlot());
    plots.back().curves[0].points = {{0, 20920}, {1, 20920 * (1 + spread)}};
  }
  for (const Json& drawn : Drawn(plots)) {
    const auto labels = drawn["ys"].get<Strings>();
    EXPECT_EQ(std::set<std::string>(labels.begin(), labels.end()).size(), labels.size()) << drawn;
    EXPECT_GE(labels.size(), 2u);
  }
}

TEST_F(DrawnPlot, LogarithmicWhereAFewValuesWouldHideTheRest) {
  std::vector<Plot> plots(3, LossPlot());
  for (Plot& plot : plots) {
    plot.curves[0].points = {{1, 1000}, {2, 2}, {3, 1}, {4, 1}, {5, 2}, {6, 1}, {7, 1}};
  }
  plots[1].curves[0].points[3].y = 0;
  plots[2].may_be_log = false;
  const Json drawn = Drawn(plots);
  EXPECT_EQ(drawn[0]["log"], "true");
  EXPECT_EQ(drawn[1]["log"], "false");
  EXPECT_TRUE(drawn[2]["log"].is_null());
}

TEST_F(DrawnPlot, ExtremeValuesGiveNumbers) {
  std::vector<Plot> plots;
  std::string logarithmic;
  for (const double scale : {1e-300, 1e-10, 1e299}) {
    for (const double low : {-1.0, 0.0, 1e-3, 1e-298}) {
      logarithmic += " 'log " + std::to_string(plots.size()) + "'";
      plots.push_back(LossPlot());
      plots.back().curves[0].points = {{0, low * scale}, {1, scale}, {2, scale}, {3, 0.5 * scale}};
    }
  }
  for (const std::string& actions : {std::string(), logarithmic}) {
    const std::string drawn = Drawn(plots, actions).dump();
    EXPECT_EQ(drawn.find("NaN"), std::string::npos) << drawn;
    EXPECT_EQ(drawn.find("Infinity"), std::string::npos) << drawn;
  }
}

TEST(Plots, DataHasTheValues) {
  Plot plot = LossPlot();
  plot.curves.push_back({"<b>&\xff", -1, Curve::Style::kMarks, {{1e15, 0}}});
  plot.curves.push_back({"empty", 2, Curve::Style::kLine, {}});
  Plot marks = plot;  // Marks alone are no plot.
  marks.curves.erase(marks.curves.begin());
  const std::string text = DataOf(
      PlotsToHtml({.plots = {marks, plot}, .x = "step", .runs = {"{}"}, .targets = "tokens"}));
  EXPECT_EQ(text.find_first_of("<>&"), std::string::npos) << text;
  const Json all = Json::parse(text);
  EXPECT_EQ(all["x"], "step");
  EXPECT_EQ(all["targets"], "tokens");
  EXPECT_EQ(all["runs"], Json::parse("[{}]"));
  ASSERT_EQ(all["plots"].size(), 1u);
  const Json json = all["plots"][0];
  EXPECT_EQ(json["id"], "loss");
  EXPECT_EQ(json["title"], "Loss");
  EXPECT_EQ(json["unit"], "nats");
  EXPECT_EQ(json["max"], 100);
  EXPECT_EQ(json["curves"].size(), 2u);
  EXPECT_EQ(json["curves"][0]["x"], (Json{0, 50, 100}));
  EXPECT_EQ(json["curves"][0]["y"], (Json{4, 3, 2}));
  EXPECT_EQ(json["curves"][0]["colour"], "c0");
  EXPECT_EQ(json["curves"][0]["run"], 0);
  EXPECT_EQ(json["curves"][1]["name"], "<b>&\\xff");
  EXPECT_EQ(json["curves"][1]["colour"], "ct");
  EXPECT_EQ(json["curves"][1]["style"], "marks");
  EXPECT_EQ(json["curves"][1]["x"][0], 1000000000000000);
}

TEST(Plots, NumbersStandWhereThereAreNoScripts) {
  Plot plot = LossPlot();
  plot.curves[0].points = {{0, 4}, {50, 1.25}, {100, 2}};
  const std::string html = PlotsToHtml({.plots = {plot}, .x = "<s>", .runs = {}, .targets = ""});
  const std::string want =
      "<tr><td>Loss, nats</td><td>a</td><td class=\"n\">2</td><td class=\"dim\">at &lt;s&gt; "
      "100</td><td class=\"n\">1.25</td><td class=\"dim\">at &lt;s&gt; 50</td><td "
      "class=\"n\">4</td>"
      "<td class=\"dim\">at &lt;s&gt; 0</td></tr>";
  const size_t at = html.find(want);
  EXPECT_GT(at, html.find("<noscript>")) << html;
  EXPECT_LT(at, html.find("</noscript>"));
}

TEST(EscapeHtml, LeavesNothingThatHtmlReads) {
  EXPECT_EQ(EscapeHtml("a<b>&\"'c"), "a&lt;b&gt;&amp;&quot;&#39;c");
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  std::string escaped = EscapeHtml(all);
  for (std::string_view rest = escaped; !rest.empty();) {
    const size_t length = Utf8Length(rest);
    ASSERT_GT(length, 0u);
    rest.remove_prefix(length);
  }
  EXPECT_EQ(escaped.find_first_of("<>\"'"), std::string::npos);
  EXPECT_EQ(std::count(escaped.begin(), escaped.end(), '&'), 5);  // One of each of ours.
  for (const char* ours : {"&lt;", "&gt;", "&amp;", "&quot;", "&#39;"}) {
    EXPECT_NE(escaped.find(ours), std::string::npos);
  }
  EXPECT_EQ(EscapeHtml("größe\t\n"), "größe\t\n");
}

}  // namespace
}  // namespace fsdp
