#include "trainer/observe/report/expert_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "trainer/core/units.h"

namespace fsdp {
namespace {

// Shades by quarters of the mean; 0: not a token.
constexpr int kShades = 9;

int ShadeOf(int64_t load, double mean) {
  if (load <= 0 || mean <= 0) return 0;
  const double quarters = std::ceil(4 * static_cast<double>(load) / mean);
  return static_cast<int>(std::min<double>(quarters, kShades - 1));
}

}  // namespace

std::string ExpertMap(const ExpertsRecord& record) {
  std::array<std::string, kShades> paths;
  size_t widest = 0;
  for (size_t layer = 0; layer < record.loads.size(); ++layer) {
    const std::vector<int64_t>& loads = record.loads[layer];
    widest = std::max(widest, loads.size());
    const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
    for (size_t e = 0; e < loads.size(); ++e) {
      const int shade = ShadeOf(loads[e], sum / static_cast<double>(loads.size()));
      paths[static_cast<size_t>(shade)] +=
          "M" + std::to_string(e) + " " + std::to_string(layer) + "h1v1h-1";
    }
  }
  if (widest == 0) return "";
  const std::string height = std::to_string(record.loads.size());
  std::string html =
      "<p class=\"dim\">Tokens of each expert at step " + Grouped(record.step) +
      ": a row for each layer that has experts, the first on top. Blank: not a token; darkest: at "
      "least twice the layer's mean.</p>\n<svg class=\"c0\" role=\"img\" viewBox=\"0 0 " +
      std::to_string(widest) + " " + height +
      "\" preserveAspectRatio=\"none\" style=\"width:100%;height:" +
      std::to_string(std::clamp<size_t>(record.loads.size() * 12, 24, 480)) +
      "px;border:1px solid var(--line);color:var(--c)\" shape-rendering=\"crispEdges\">";
  for (int shade = 1; shade < kShades; ++shade) {
    const std::string& path = paths[static_cast<size_t>(shade)];
    if (path.empty()) continue;
    html += "<path fill=\"currentColor\" fill-opacity=\"0." + std::to_string(shade * 12) +
            "\" d=\"" + path + "\"/>";
  }
  return html + "</svg>\n";
}

}  // namespace fsdp
