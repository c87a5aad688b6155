// Dropout of a block of transposed weights (attention_lanes.h), for sources that are compiled once
// for each instruction set (isa.h).
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_DROP_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_DROP_H_

#include <cstdint>

#include "trainer/ops/cpu/attention/attention_kernels.h"
#include "trainer/ops/cpu/attention/attention_lanes.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

// words[r][i] = Philox({key / 4, query + i, site, 1 + head}, draws.key)[r]: trainer/core/philox.cc
// along lanes. `key` is a multiple of 4.
template <typename Tile>
void DrawWords(const ProbabilityDraws& draws, int64_t query, int64_t key,
               uint32_t (*words)[Tile::kWide]) {
  uint32_t *const c0 = words[0], *const c1 = words[1], *const c2 = words[2], *const c3 = words[3];
  for (int64_t i = 0; i < Tile::kWide; ++i) {
    c0[i] = static_cast<uint32_t>(key / 4);
    c1[i] = static_cast<uint32_t>(query + i);
    c2[i] = draws.site;
    c3[i] = 1 + draws.head;
  }
  uint32_t k0 = draws.key[0], k1 = draws.key[1];
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
#pragma omp simd
    for (int64_t i = 0; i < Tile::kWide; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[i], p1 = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(p0);
    }
  }
}

// Calls row(j, m) for each key of the tile, in order: m[i] belongs to query i.
template <typename Tile, typename Row>
FSDP_ALWAYS_INLINE void ForEachDrawn(const ProbabilityDraws& draws, const Tile& tile, int64_t query,
                                     int64_t key, const Row& row) {
  static_assert(Tile::kWide % 4 == 0);
  alignas(64) uint32_t words[4][Tile::kWide];
  alignas(64) float m[Tile::kWide];
  for (int64_t j = 0; j < tile.keys; ++j) {
    if (j % 4 == 0) DrawWords<Tile>(draws, query, key + j, words);
    const uint32_t* drawn = words[j % 4];
#pragma omp simd
    for (int64_t i = 0; i < Tile::kWide; ++i)
      m[i] = drawn[i] >= draws.threshold ? draws.scale : 0.0f;
    row(j, m);
  }
}

// p becomes p m.
template <typename Tile, typename T>
void Drop(const BasicAttentionHead<T>& head, const Tile& tile, int64_t query, int64_t key,
          float* st) {
  if (!head.drops) return;
  ForEachDrawn(head.drop, tile, query, key, [&](int64_t j, const float* m) {
    float* p = st + j * Tile::kWide;
#pragma omp simd
    for (int64_t i = tile.FirstLane(j); i < tile.Lanes(); ++i) p[i] *= m[i];
  });
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_DROP_H_
