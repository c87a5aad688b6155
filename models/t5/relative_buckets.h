// Which column of T5's table of biases a distance belongs to (Raffel et al. 2020, arXiv:1910.10683,
// section 2.1): as T5Attention._relative_position_bucket of transformers (modeling_t5.py, 5.23) has
// it, whose logarithms are fp32.
//   causal         n buckets, for the distance back, d = max(0, query - key)
//   bidirectional  n = buckets / 2, for d = |query - key|, and as many for keys behind the query
//   bucket         d where d < n / 2, else n / 2 + floor(log(2 d / n) / log(2 max / n) n / 2), at
//                  most n - 1
// Tests: tests/models/t5/relative_buckets_test.cc
#ifndef FSDP_TRAIN_MODELS_T5_RELATIVE_BUCKETS_H_
#define FSDP_TRAIN_MODELS_T5_RELATIVE_BUCKETS_H_

#include <cstdint>

#include "trainer/core/view.h"

namespace fsdp {

class Stream;

struct RelativeBuckets {
  int64_t buckets = 32, max_distance = 128;  // At least 4, and more than half of the buckets.
  bool bidirectional = true;

  // `distance`: key - query. In [0, buckets).
  int32_t Of(int64_t distance) const;
};

// out[i] = the bucket of distance i + first. int32 [n]. Enqueues an operation for each run of equal
// elements, at most 2 * buckets.
void FillBuckets(Stream& stream, const RelativeBuckets& of, int64_t first, View out);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_T5_RELATIVE_BUCKETS_H_
