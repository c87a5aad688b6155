#include "trainer/observe/spikes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace fsdp {
namespace {

double Deviations(double value, const std::deque<double>& others) {
  const auto n = static_cast<double>(others.size());
  double mean = 0, squares = 0;
  for (const double other : others) mean += other / n;
  for (const double other : others) squares += (other - mean) * (other - mean);
  using Limits = std::numeric_limits<float>;
  const double rounding = std::max<double>(std::abs(mean) * Limits::epsilon(), Limits::min());
  return (value - mean) / std::max(std::sqrt(squares / (n - 1)), rounding);
}

}  // namespace

std::optional<double> SpikeWindow::Add(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  std::optional<double> deviations;
  if (last_.size() >= kLeast) deviations = Deviations(value, last_);
  last_.push_back(value);
  if (last_.size() > kSteps) last_.pop_front();
  return deviations;
}

double SpikeWindow::Median() const {
  if (last_.empty()) return 0;
  std::vector<double> sorted(last_.begin(), last_.end());
  const auto middle = sorted.begin() + static_cast<int64_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

}  // namespace fsdp
