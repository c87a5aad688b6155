// A query's keys, and those that dropout keeps: for kernels that have whole rows of scores.
// Tests: tests/trainer/ops/attention_math_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_ROWS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_ROWS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "trainer/core/philox.h"
#include "trainer/ops/attention_inputs.h"

namespace fsdp {

// The number of a sample's keys that may be seen.
inline int64_t KeysOf(const AttentionDims& dims, const AttentionInputs& in, int64_t sample) {
  if (!in.HasLengths()) return dims.keys;
  return std::clamp<int64_t>(in.lengths.As<int32_t>()[sample], 0, dims.keys);
}

// The number of keys that a query sees: the first so many.
inline int64_t SeenKeys(const AttentionDims& dims, const AttentionInputs& in, int64_t sample,
                        int64_t query) {
  const int64_t keys = KeysOf(dims, in, sample);
  return in.mask == AttentionMask::kCausal ? std::min(query + 1, keys) : keys;
}

// m of one query, drawn key by key.
class DrawnRow {
 public:
  DrawnRow(const AttentionDropout& dropout, int64_t sample, int64_t head, int64_t query)
      : drops_(dropout.rate > 0) {
    if (!drops_) return;
    threshold_ = static_cast<uint32_t>(std::ldexp(dropout.rate, 32));
    scale_ = static_cast<float>(1 / (1 - dropout.rate));
    counter_ = {0, static_cast<uint32_t>(query), dropout.site, 1 + static_cast<uint32_t>(head)};
    const int32_t* const keys = dropout.keys.As<int32_t>() + 2 * sample;
    key_ = {static_cast<uint32_t>(keys[0]), static_cast<uint32_t>(keys[1])};
  }

  // x[j] *= m[key + j], j < n.
  void Drop(int64_t key, int64_t n, float* x) const {
    if (!drops_) return;
    PhiloxCounter words{};
    for (int64_t j = 0; j < n; ++j) {
      if (j == 0 || (key + j) % 4 == 0) words = Words((key + j) / 4);
      x[j] *= words[(key + j) % 4] >= threshold_ ? scale_ : 0.0f;
    }
  }

 private:
  PhiloxCounter Words(int64_t four) const {
    PhiloxCounter counter = counter_;
    counter[0] = static_cast<uint32_t>(four);
    return Philox(counter, key_);
  }

  bool drops_;
  uint32_t threshold_ = 0;
  float scale_ = 1;
  PhiloxCounter counter_{};
  PhiloxKey key_{};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_ROWS_H_
