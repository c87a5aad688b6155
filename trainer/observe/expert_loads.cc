#include "trainer/observe/expert_loads.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace fsdp {
namespace {

// The entropy of the loads' shares, over the largest that there is. A single expert has an even
// load.
double EntropyOf(const std::vector<int64_t>& loads, double sum) {
  if (loads.size() < 2) return 1;
  double entropy = 0;
  for (const int64_t load : loads) {
    const double share = static_cast<double>(load) / sum;
    if (load > 0) entropy -= share * std::log(share);
  }
  return entropy / std::log(static_cast<double>(loads.size()));
}

}  // namespace

std::optional<ExpertLoads> LoadsOf(const std::vector<std::span<const float>>& tallies) {
  if (tallies.empty()) return std::nullopt;
  ExpertLoads all;
  const auto layers = static_cast<double>(tallies.size());
  for (const std::span<const float> tally : tallies) {
    const size_t experts = (tally.size() - 3) / 2;
    std::vector<int64_t>& loads = all.loads.emplace_back();
    double sum = 0;
    for (const float load : tally.first(experts)) {
      loads.push_back(std::llround(load));
      sum += load;
    }
    all.rows = std::llround(sum);
    all.unused += std::ranges::count(loads, 0);
    if (sum > 0) {
      const auto busiest = static_cast<double>(std::ranges::max(loads));
      all.max_load = std::max(all.max_load, busiest * static_cast<double>(experts) / sum);
      all.entropy += EntropyOf(loads, sum) / layers;
    }
    const std::span<const float> sums =
        tally.last(3);  // Sums of weights, weighted aux and weighted z.
    if (sums[0] == 0) continue;
    all.aux_loss += static_cast<double>(sums[1]) / static_cast<double>(sums[0]) / layers;
    all.z_loss += static_cast<double>(sums[2]) / static_cast<double>(sums[0]) / layers;
  }
  return all;
}

}  // namespace fsdp
