// Dropout of attention's probabilities: m of attention.h, as fragments (attention_tile.h). One draw
// gives m of four keys, and no two lanes draw the same.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_DRAWS_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_DRAWS_H_

#include <cstdint>

#include "trainer/ops/cuda/attention/attention_tile.h"
#include "trainer/ops/cuda/philox.h"

namespace fsdp {

// The draws of one sample's head.
struct AttentionDraws {
  uint32_t threshold = 0, site = 0, head = 0, key[2] = {};
  float scale = 1;  // 1 / (1 - rate).

  __device__ void Draw(int key_at, int query, uint32_t (&words)[4]) const {
    words[0] = static_cast<uint32_t>(key_at) / 4;
    words[1] = static_cast<uint32_t>(query);
    words[2] = site;
    words[3] = 1 + head;
    DevicePhilox(words, key[0], key[1]);
  }
  __device__ float Factor(uint32_t word) const { return word >= threshold ? scale : 0.0f; }
};

// m of one query and of the four keys from `key` on; `key` is a multiple of 4.
__device__ inline void DrawFourKeys(const AttentionDraws& draws, int query, int key,
                                    float (&m)[4]) {
  uint32_t w[4];
  draws.Draw(key, query, w);
#pragma unroll
  for (int e = 0; e < 4; ++e) m[e] = draws.Factor(w[e]);
}

// m of 16 queries from `query` on, in rows, and 8 keys from `keys` on, a multiple of 8, in columns.
__device__ inline void DrawQueriesByKeys(const AttentionDraws& draws, int query, int keys,
                                         float (&m)[4]) {
  // Two lanes share the four keys of a draw: one draws for row g, the other for row g + 8.
  const int lane = Lane();
  const bool odd = lane % 2 == 1;
  uint32_t w[4];
  draws.Draw(keys + lane % 4 * 2, query + lane / 4 + (odd ? 8 : 0), w);
  const uint32_t first = __shfl_xor_sync(kAllLanes, odd ? w[0] : w[2], 1);
  const uint32_t second = __shfl_xor_sync(kAllLanes, odd ? w[1] : w[3], 1);
  m[0] = draws.Factor(odd ? first : w[0]);
  m[1] = draws.Factor(odd ? second : w[1]);
  m[2] = draws.Factor(odd ? w[2] : first);
  m[3] = draws.Factor(odd ? w[3] : second);
}

// m of 16 keys from `keys` on, a multiple of 8, in rows, and 8 queries from `query` on, in columns.
__device__ inline void DrawKeysByQueries(const AttentionDraws& draws, int keys, int query,
                                         float (&m)[4]) {
  // Each of four lanes with neighbouring keys draws one of their four elements, for all four keys.
  // The lanes then exchange words: a transposition in two steps.
  const int lane = Lane(), part = lane / 4 % 4;
  uint32_t w[4];
  draws.Draw(keys + lane / 4 + part / 2 * 8, query + lane % 4 * 2 + part % 2, w);
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = (part & step) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? w[i] : w[i + step], 4 * step);
      if (upper) {
        w[i] = got;
      } else {
        w[i + step] = got;
      }
    }
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) m[e] = draws.Factor(w[e]);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_DRAWS_H_
