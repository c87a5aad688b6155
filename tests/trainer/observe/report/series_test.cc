#include "trainer/observe/report/series.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace fsdp {
namespace {

std::vector<Point> Line(int64_t count) {
  std::vector<Point> points;
  for (int64_t i = 1; i <= count; ++i) {
    points.push_back({static_cast<double>(i), std::sin(static_cast<double>(i))});
  }
  return points;
}

Series Of(const std::vector<Point>& points, size_t buckets) {
  Series series(buckets);
  for (const Point& p : points) series.Add(p.x, p.y);
  return series;
}

TEST(Series, KeepsAllWhileTheyFit) {
  for (const int64_t count : {1, 7, 20}) {
    EXPECT_EQ(Of(Line(count), 20).Extremes(), Line(count));
  }
  EXPECT_TRUE(Series(2).empty());
  EXPECT_TRUE(Series(2).Extremes().empty());
}

// One peak and one low anywhere among many points, at every place of a bucket.
TEST(Series, NeverLosesAnExtreme) {
  const int64_t count = 1000;
  for (int64_t at = 0; at < count; ++at) {
    std::vector<Point> points = Line(count);
    points[at].y = 5;
    points[(at + 501) % count].y = -7;
    const std::vector<Point> got = Of(points, 8).Extremes();
    EXPECT_LE(got.size(), 32u);
    EXPECT_NE(std::find(got.begin(), got.end(), points[at]), got.end()) << at;
    EXPECT_NE(std::find(got.begin(), got.end(), points[(at + 501) % count]), got.end()) << at;
    EXPECT_EQ(got.front(), points.front());
    EXPECT_EQ(got.back(), points.back());
    EXPECT_TRUE(std::is_sorted(got.begin(), got.end(),
                               [](const Point& a, const Point& b) { return a.x < b.x; }));
  }
}

TEST(Series, BoundedForAnyLength) {
  Series series(64);
  for (int64_t i = 0; i < 1000000; ++i) {
    series.Add(static_cast<double>(i), static_cast<double>(i % 977));
  }
  EXPECT_EQ(series.count(), 1000000);
  EXPECT_EQ(series.last(), (Point{999999, 999999 % 977}));
  EXPECT_LE(series.Extremes().size(), 4 * 64u);
  EXPECT_GE(series.Extremes().size(), 2 * 64u);
  EXPECT_LE(series.Smoothed().size(), 64u);
}

TEST(Series, SmoothedIsTheMean) {
  EXPECT_TRUE(Of(Line(19), 100).Smoothed().empty());
  // A straight line stays one, from its first point to before the window is cut off at the end.
  std::vector<Point> line;
  for (int i = 0; i < 1000; ++i) line.push_back({double(i), 3.0 * i + 1});
  for (const size_t buckets : {40, 100, 1000}) {
    const std::vector<Point> smooth = Of(line, buckets).Smoothed();
    ASSERT_GE(smooth.size(), buckets / 2);
    for (size_t i = 0; i + 1 + std::max<size_t>(2, smooth.size() / 25) < smooth.size(); ++i) {
      EXPECT_NEAR(smooth[i].y, 3 * smooth[i].x + 1, 1e-9 * (1 + std::abs(smooth[i].y)));
    }
  }
  // Noise around a constant gets smaller.
  Series noise(1000);
  for (int i = 0; i < 1000; ++i) noise.Add(i, i % 2);
  for (const Point& p : noise.Smoothed()) {
    if (p.x <= 40) continue;
    EXPECT_NEAR(p.y, 0.5, 0.05);
  }
}

TEST(Series, RefusesWhatIsNoNumber) {
  EXPECT_THROW(Series(3), std::invalid_argument);
  EXPECT_THROW(Series(0), std::invalid_argument);
  Series series(2);
  EXPECT_THROW(series.Add(1, std::nan("")), std::invalid_argument);
  EXPECT_THROW(series.Add(std::numeric_limits<double>::infinity(), 1), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
