#include "models/t5/relative_buckets.h"

#include <algorithm>
#include <cmath>

#include "trainer/ops/elementwise.h"

namespace fsdp {

int32_t RelativeBuckets::Of(int64_t distance) const {
  const int64_t n = bidirectional ? buckets / 2 : buckets;
  const int64_t after = bidirectional && distance > 0 ? n : 0;
  const int64_t d = bidirectional ? std::abs(distance) : std::max<int64_t>(0, -distance);
  const int64_t exact = n / 2;
  if (d < exact) return static_cast<int32_t>(after + d);
  const double range = std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  const float place = std::log(static_cast<float>(d) / static_cast<float>(exact)) /
                      static_cast<float>(range) * static_cast<float>(n - exact);
  return static_cast<int32_t>(after + std::min(exact + static_cast<int64_t>(place), n - 1));
}

void FillBuckets(Stream& stream, const RelativeBuckets& of, int64_t first, View out) {
  const int64_t n = out.NumElements();
  for (int64_t begin = 0, end = 0; begin < n; begin = end) {
    const int32_t bucket = of.Of(first + begin);
    while (end < n && of.Of(first + end) == bucket) ++end;
    Fill(stream, static_cast<float>(bucket), out.Slice(begin, end - begin));
  }
}

}  // namespace fsdp
