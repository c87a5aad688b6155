// A curve of any length in bounded memory, whose extremes are never lost.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_REPORT_SERIES_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_REPORT_SERIES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdp {

struct Point {
  double x = 0, y = 0;
  bool operator==(const Point&) const = default;
};

// Points go into buckets of equal count; when all `buckets` are full, neighbours are merged. A
// bucket knows its first, lowest, highest and last point and the means.
class Series {
 public:
  explicit Series(size_t buckets);  // Even, at least 2: std::invalid_argument.

  void Add(double x, double y);  // Neither may be NaN or infinite: std::invalid_argument.

  bool empty() const { return count_ == 0; }
  int64_t count() const { return count_; }
  const Point& last() const { return buckets_.back().last.point; }  // Not of an empty one.

  // At most four points a bucket, in the order they came: all of them while there are no more than
  // `buckets`. The lowest and the highest of all are among them.
  std::vector<Point> Extremes() const;

  // The mean over a window of about a twentieth of the curve, weighted by distance; empty for fewer
  // than 20 points or buckets in use. At the beginning, where curves are steep, the window is
  // symmetric.
  std::vector<Point> Smoothed() const;

 private:
  struct Indexed {
    int64_t index;
    Point point;
  };
  struct Bucket {
    Indexed first, low, high, last;
    double sum_x, sum_y;
    int64_t count;
  };
  static Bucket Merge(const Bucket& a, const Bucket& b);

  size_t limit_;
  int64_t per_bucket_ = 1;
  int64_t count_ = 0;
  std::vector<Bucket> buckets_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_REPORT_SERIES_H_
