#include "trainer/observe/report/plot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "trainer/core/utf8.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;

Strings Labels(const std::vector<double>& ticks) {
  Strings labels;
  for (const double tick : ticks) labels.push_back(TickLabel(tick));
  return labels;
}

TEST(Ticks, AreRoundAndInside) {
  EXPECT_EQ(Labels(Ticks(0, 1, 5)), (Strings{"0", "0.2", "0.4", "0.6", "0.8", "1"}));
  EXPECT_EQ(Labels(Ticks(0, 2999, 4)), (Strings{"0", "1000", "2000"}));
  EXPECT_EQ(Labels(Ticks(-0.3, 0.3, 3)), (Strings{"-0.2", "0", "0.2"}));
  EXPECT_EQ(Labels(Ticks(9.8, 10.7, 5)), (Strings{"9.8", "10", "10.2", "10.4", "10.6"}));
  for (const double scale : {1e-300, 1e-9, 1.0, 3.7e11, 1e300}) {
    for (const double low : {-1.0, 0.0, 0.77}) {
      const std::vector<double> ticks = Ticks(low * scale, 1.31 * scale, 5);
      EXPECT_GE(ticks.size(), 2u);
      EXPECT_LE(ticks.size(), 9u);
      for (const double tick : ticks) {
        EXPECT_GE(tick, (low - 1e-6) * scale);
        EXPECT_LE(tick, 1.32 * scale);
      }
    }
  }
}

TEST(LogTicks, AreDecadesAndWhatIsBetweenThem) {
  EXPECT_EQ(Labels(LogTicks(0.9, 110, 5)), (Strings{"1", "2", "5", "10", "20", "50", "100"}));
  EXPECT_EQ(Labels(LogTicks(1, 10000, 5)), (Strings{"1", "10", "100", "1000", "10k"}));
  EXPECT_EQ(LogTicks(2, 3, 5), Ticks(2, 3, 5));
  EXPECT_LE(LogTicks(1e-299, 1e299, 5).size(), 6u);
}

TEST(TickLabel, IsShort) {
  for (const auto& [value, label] :
       std::vector<std::pair<double, std::string>>{{0, "0"},
                                                   {0.25, "0.25"},
                                                   {0.001, "0.001"},
                                                   {4e-4, "4e-4"},
                                                   {-2.5e-7, "-2.5e-7"},
                                                   {1200, "1200"},
                                                   {9999, "9999"},
                                                   {12000, "12k"},
                                                   {-340000, "-340k"},
                                                   {3.4e6, "3.4M"},
                                                   {2e9, "2G"},
                                                   {1e12, "1T"},
                                                   {1e18, "1e18"}}) {
    EXPECT_EQ(TickLabel(value), label);
  }
}

Plot LossPlot() {
  return {"loss", "Loss", "nats", {{"a", 0, Curve::Style::kLine, {{0, 4}, {50, 3}, {100, 2}}}}};
}

TEST(Plot, CurveFillsTheArea) {
  Plot plot = LossPlot();
  plot.from_zero = false;
  const std::string html = PlotToHtml(plot, 100);
  // 4 % of the range above and below: 2 to 4 becomes 1.92 to 4.08.
  EXPECT_NE(html.find("<path class=\"stroke\" d=\"M0.0 37.0L500.0 500.0L1000.0 963.0\"/>"),
            std::string::npos)
      << html;
  EXPECT_NE(html.find("<span style=\"left:50.00%\">50</span>"), std::string::npos) << html;
  EXPECT_EQ(html.find("class=\"dot\""), std::string::npos);
  EXPECT_NE(html.find("hidden>log</button>"),
            std::string::npos);  // Without script it does nothing.

  plot.curves[0].style = Curve::Style::kDots;
  EXPECT_NE(
      PlotToHtml(plot, 100).find("class=\"dot\" d=\"M0.0 37.0h0M500.0 500.0h0M1000.0 963.0h0"),
      std::string::npos);
  plot.curves[0] = {"one", 0, Curve::Style::kLine, {{50, 7}}};
  EXPECT_NE(PlotToHtml(plot, 100).find("class=\"dot\" d=\"M500.0 500.0h0"), std::string::npos);
  plot.curves.push_back({"resume", -1, Curve::Style::kMarks, {{50, 0}}});
  EXPECT_NE(PlotToHtml(plot, 100).find("d=\"M500.0 1000.0V0\""), std::string::npos);
  plot.curves.erase(plot.curves.begin());
  EXPECT_EQ(PlotToHtml(plot, 100), "");  // Marks alone are no plot.
}

TEST(Plot, LabelsDifferWhereValuesHardlyDo) {
  Plot plot = LossPlot();
  for (const double spread : {0.0, 1e-9, 1e-4, 4e-3, 6e-3}) {
    plot.curves[0].points = {{0, 20920}, {1, 20920 * (1 + spread)}};
    const std::string html = PlotToHtml(plot, 1);
    std::set<std::string> labels;
    size_t count = 0;
    for (size_t at = 0; (at = html.find("bottom:", at)) != std::string::npos; ++count) {
      at = html.find('>', at) + 1;
      labels.insert(html.substr(at, html.find('<', at) - at));
    }
    EXPECT_EQ(labels.size(), count) << html;
    EXPECT_GE(count, 2u);
  }
}

TEST(Plot, LogarithmicWhereAFewValuesWouldHideTheRest) {
  Plot plot = LossPlot();
  EXPECT_FALSE(BeginsLogarithmic(plot));
  plot.curves[0].points = {{1, 1000}, {2, 2}, {3, 1}, {4, 1}, {5, 2}, {6, 1}, {7, 1}};
  EXPECT_TRUE(BeginsLogarithmic(plot));
  EXPECT_NE(PlotToHtml(plot, 7).find("aria-pressed=\"true\" hidden>log"), std::string::npos);
  plot.curves[0].points[3].y = 0;
  EXPECT_FALSE(BeginsLogarithmic(plot));
  plot.may_be_log = false;
  EXPECT_EQ(PlotToHtml(plot, 7).find(">log<"), std::string::npos);
}

TEST(Plot, ExtremeValuesGiveNumbers) {
  for (const double scale : {1e-300, 1e-10, 1e299}) {
    for (const double low : {-1.0, 0.0, 1e-3}) {
      Plot plot = LossPlot();
      plot.curves[0].points = {{0, low * scale}, {1, scale}, {2, scale}, {3, 0.5 * scale}};
      const std::string html = PlotToHtml(plot, 3);
      EXPECT_EQ(html.find("nan"), std::string::npos) << html;
      EXPECT_EQ(html.find("inf"), std::string::npos) << html;
    }
  }
}

TEST(Plot, JsonHoldsTheValues) {
  Plot plot = LossPlot();
  plot.curves.push_back({"<b>&\xff", -1, Curve::Style::kMarks, {{1e15, 0}}});
  const std::string text = PlotToJson(plot, 100);
  EXPECT_EQ(text.find_first_of("<>&"), std::string::npos) << text;
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["id"], "loss");
  EXPECT_EQ(json["max"], 100);
  EXPECT_EQ(json["curves"][0]["x"], (nlohmann::json{0, 50, 100}));
  EXPECT_EQ(json["curves"][0]["y"], (nlohmann::json{4, 3, 2}));
  EXPECT_EQ(json["curves"][0]["colour"], "c0");
  EXPECT_EQ(json["curves"][0]["run"], 0);
  EXPECT_EQ(json["curves"][1]["name"], "<b>&\\xff");
  EXPECT_EQ(json["curves"][1]["colour"], "ct");
  EXPECT_EQ(json["curves"][1]["style"], "marks");
  EXPECT_EQ(json["curves"][1]["x"][0], 1000000000000000);
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
