#include "trainer/data/clicks/synthetic_clicks.h"

#include <array>
#include <cmath>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/data/clicks/click_store.h"

namespace fsdp {
namespace {

constexpr uint64_t kFunction = 1;
constexpr double kBias = -1, kFirst = 0.3, kSecond = 1.5, kThird = 0.8;

double Entropy(double p) {
  return p <= 0 || p >= 1 ? 0 : -p * std::log(p) - (1 - p) * std::log1p(-p);
}

}  // namespace

SyntheticClicks::SyntheticClicks(ClickColumns columns, int64_t size, uint64_t samples)
    : columns_(std::move(columns)), size_(size), samples_(samples) {
  FSDP_CHECK_EQ(columns_.rows.size(), columns_.bags.size());
  const auto columns_of_all = static_cast<size_t>(columns_.dense) + columns_.rows.size();
  FSDP_CHECK(columns_of_all > 0);
  for (size_t c = 0; c < columns_of_all; ++c) vectors_.emplace_back(kFunction, "planted", c);
}

double SyntheticClicks::Draw(int64_t i, std::span<float> dense, std::span<int32_t> ids) const {
  using Vector = std::array<double, kFactors>;
  static thread_local std::vector<Vector> v;
  v.assign(vectors_.size(), Vector{});
  const RandomStream numbers(samples_, "planted.dense", static_cast<uint64_t>(i));
  const RandomStream draws(samples_, "planted.ids", static_cast<uint64_t>(i));
  const auto columns = static_cast<size_t>(columns_.dense);
  for (size_t c = 0; c < columns; ++c) {
    const float x = numbers.Normal(c);
    if (!dense.empty()) dense[c] = x;
    for (size_t k = 0; k < kFactors; ++k) v[c][k] = static_cast<double>(x) * vectors_[c].Normal(k);
  }
  uint64_t drawn = 0;
  size_t slot = 0;
  for (size_t t = 0; t < columns_.rows.size(); ++t) {
    const int64_t bag = columns_.bags[t];
    const auto n = bag == 1 ? 1 : static_cast<int64_t>(draws.Below(drawn++, bag + 1));
    for (int64_t j = 0; j < bag; ++j, ++slot) {
      uint64_t id = kNoId;
      if (j < n) {
        id = draws.Below(drawn++, static_cast<uint64_t>(columns_.rows[t]));
        for (size_t k = 0; k < kFactors; ++k) {
          v[columns + t][k] +=
              vectors_[columns + t].Normal(id * kFactors + k) / std::sqrt(static_cast<double>(bag));
        }
      }
      if (!ids.empty()) WriteId(id, ids.subspan(2 * slot).first<2>());
    }
  }
  double first = 0, second = 0, third = 0;
  const size_t all = v.size();
  for (size_t c = 0; c < all; ++c) {
    first += v[c][0];
    for (size_t k = 0; k < kFactors; ++k) {
      second += v[c][k] * v[(c + 1) % all][k];
      third += v[c][k] * v[(c + 1) % all][k] * v[(c + 3) % all][k];
    }
  }
  const auto n = static_cast<double>(all);
  const double z = kBias + kFirst * first / std::sqrt(n) +
                   (kSecond * second + kThird * third) / std::sqrt(n * kFactors);
  return 1 / (1 + std::exp(-z));
}

float SyntheticClicks::Read(int64_t i, std::span<float> dense, std::span<int32_t> ids) const {
  const double p = Draw(i, dense, ids);
  const RandomStream label(samples_, "planted.label", static_cast<uint64_t>(i));
  return static_cast<double>(label.Uniform(0)) < p ? 1 : 0;
}

std::vector<std::string> SyntheticClicks::Names() const {
  std::vector<std::string> names;
  for (int64_t i = 0; i < columns_.dense; ++i) names.push_back("number " + std::to_string(i));
  for (size_t i = 0; i < columns_.bags.size(); ++i) names.push_back("ids " + std::to_string(i));
  return names;
}

std::optional<double> SyntheticClicks::Probability(int64_t i) const { return Draw(i, {}, {}); }

ClickFloor FloorOf(const ClickStore& store, std::span<const int64_t> clicks) {
  FSDP_CHECK(!clicks.empty());
  double entropy = 0, mean = 0;
  for (const int64_t i : clicks) {
    const double p = *store.Probability(i);
    entropy += Entropy(p);
    mean += p;
  }
  const auto n = static_cast<double>(clicks.size());
  return {entropy / n, entropy / n / Entropy(mean / n)};
}

}  // namespace fsdp
