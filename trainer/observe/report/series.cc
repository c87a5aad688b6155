#include "trainer/observe/report/series.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>

#include "trainer/core/units.h"

namespace fsdp {

Series::Series(size_t buckets) : limit_(buckets) {
  if (buckets < 2 || buckets % 2 != 0) {
    throw std::invalid_argument("[Series] want an even number of buckets, got " +
                                std::to_string(buckets));
  }
}

Series::Bucket Series::Merge(const Bucket& a, const Bucket& b) {
  return {a.first,
          b.low.point.y < a.low.point.y ? b.low : a.low,
          b.high.point.y > a.high.point.y ? b.high : a.high,
          b.last,
          a.sum_x + b.sum_x,
          a.sum_y + b.sum_y,
          a.count + b.count};
}

void Series::Add(double x, double y) {
  if (!std::isfinite(x) || !std::isfinite(y)) {
    throw std::invalid_argument("[Series::Add] want finite numbers, got " + Shortest(x) + ", " +
                                Shortest(y));
  }
  const Indexed here{count_++, {x, y}};
  const Bucket one{here, here, here, here, x, y, 1};
  if (!buckets_.empty() && buckets_.back().count < per_bucket_) {
    buckets_.back() = Merge(buckets_.back(), one);
    return;
  }
  if (buckets_.size() == limit_) {
    for (size_t i = 0; i < limit_ / 2; ++i) {
      buckets_[i] = Merge(buckets_[2 * i], buckets_[2 * i + 1]);
    }
    buckets_.resize(limit_ / 2, one);
    per_bucket_ *= 2;
  }
  buckets_.push_back(one);
}

std::vector<Point> Series::Extremes() const {
  std::vector<Point> points;
  for (const Bucket& bucket : buckets_) {
    std::array<Indexed, 4> four = {bucket.first, bucket.low, bucket.high, bucket.last};
    std::sort(four.begin(), four.end(),
              [](const Indexed& a, const Indexed& b) { return a.index < b.index; });
    for (size_t i = 0; i < four.size(); ++i) {
      if (i == 0 || four[i].index != four[i - 1].index) points.push_back(four[i].point);
    }
  }
  return points;
}

std::vector<Point> Series::Smoothed() const {
  std::vector<Point> points;
  const auto size = static_cast<int64_t>(buckets_.size());
  if (size < 20) return points;
  const int64_t half = std::max<int64_t>(2, size / 25);
  for (int64_t i = 0; i < size; ++i) {
    double sum = 0, weights = 0;
    for (int64_t j = std::max<int64_t>(0, i - half); j <= std::min({size - 1, i + half, 2 * i});
         ++j) {
      const double weight = static_cast<double>(half + 1 - std::abs(i - j));
      sum += weight * buckets_[j].sum_y;
      weights += weight * static_cast<double>(buckets_[j].count);
    }
    points.push_back({buckets_[i].sum_x / static_cast<double>(buckets_[i].count), sum / weights});
  }
  return points;
}

}  // namespace fsdp
