// Masks and biases of a block of attention's transposed scores, between its products, for sources
// that are compiled once for each instruction set (isa.h).
//
// st[j][q]: keys are rows, queries are lanes. Then the maximum, the sum and the exponentials of a
// query run along rows of lanes with no horizontal step.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_LANES_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_LANES_H_

#include <cstdint>

#include "trainer/ops/cpu/attention/attention_kernels.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

constexpr int64_t kUnit = 16;  // Lanes; blocks and padding are multiples of it.
#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
constexpr int kPerUnit = kUnit / kLanes;

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Bits __attribute__((vector_size(kLanes * 4)));

FSDP_ALWAYS_INLINE Vector LoadVector(const void* from) {  // Not aligned.
  Vector v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

FSDP_ALWAYS_INLINE void StoreVector(void* to, Vector v) { __builtin_memcpy(to, &v, sizeof(v)); }

constexpr int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

constexpr int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

void Fill(float* begin, float* end, float value) {
  for (; begin < end; ++begin) *begin = value;
}

// At most kSize keys and queries; a row of scores has kSize lanes. On the diagonal only queries
// from j on attend to key j, and lanes are left out that no query of kRows keys needs.
template <int64_t kSize, int64_t kRows>
struct TileOf {
  static constexpr int64_t kWide = kSize;

  int64_t keys, queries;  // Valid ones.
  bool diagonal;

  // The first lane that is computed in the row of key j.
  int64_t FirstLane(int64_t j) const { return diagonal ? j / kRows * kRows / kUnit * kUnit : 0; }
  int64_t Lanes() const { return RoundUp(queries, kUnit); }
};

// Sets -infinity where query q does not see key j: exp() gives exactly zero there.
template <typename Tile>
void Mask(const Tile& tile, float* st) {
  if (!tile.diagonal) return;
  for (int64_t j = 0; j < tile.keys; ++j) {
    Fill(st + j * Tile::kWide + tile.FirstLane(j), st + j * Tile::kWide + j, -__builtin_inff());
  }
}

// The same where key j, of the tile that begins at `key`, lies before the document of query q.
// `start`: the begins of the queries' documents, in ascending order.
template <typename Tile>
void MaskDocuments(const Tile& tile, const int64_t* start, int64_t key, float* st) {
  if (tile.queries == 0 || start[tile.queries - 1] <= key) return;
  int64_t lane = 0;  // The first whose document begins after key j.
  for (int64_t j = 0; j < tile.keys; ++j) {
    while (lane < tile.queries && start[lane] <= key + j) ++lane;
    Fill(st + j * Tile::kWide + lane, st + j * Tile::kWide + tile.Lanes(), -__builtin_inff());
  }
}

// The same where key j lies behind the document of query q, under a full mask. `end`: the ends of
// the queries' documents, in ascending order.
template <typename Tile>
void MaskEnds(const Tile& tile, const int64_t* end, int64_t key, float* st) {
  if (tile.queries == 0 || end[0] >= key + tile.keys) return;
  int64_t lane = 0;  // The first whose document ends behind key j.
  for (int64_t j = 0; j < tile.keys; ++j) {
    while (lane < tile.queries && end[lane] <= key + j) ++lane;
    Fill(st + j * Tile::kWide, st + j * Tile::kWide + lane, -__builtin_inff());
  }
}

template <typename Tile, typename T>
Tile TileAt(const BasicAttentionHead<T>& head, int64_t query, int64_t key) {
  return {Min(Tile::kWide, head.seen - key), Min(Tile::kWide, head.seq - query),
          head.causal && query == key};
}

// The begins of the documents of a tile's queries.
template <typename Tile, typename T>
void Starts(const BasicAttentionHead<T>& head, int64_t query, int64_t* start) {
  for (int64_t i = query; i < Min(head.seq, query + Tile::kWide); ++i) {
    if (head.positions == nullptr) {
      start[i - query] = 0;
      continue;
    }
    start[i - query] = i - head.positions[i];
  }
}

// The keys that a tile of queries sees: [begin, end), and among them each query's own.
template <typename Tile>
struct Span {
  int64_t begin, end;
  int64_t starts[Tile::kWide], ends[Tile::kWide];  // `ends` only under a full mask.

  template <typename T>
  Span(const BasicAttentionHead<T>& head, int64_t query) {
    const int64_t queries = Min(Tile::kWide, head.seq - query);
    Starts<Tile>(head, query, starts);
    begin = starts[0] / Tile::kWide * Tile::kWide;
    if (head.causal) {
      end = Min(query + Tile::kWide, head.seen);
      return;
    }
    int64_t at = head.keys;
    if (head.positions != nullptr) {
      at = query + queries;
      while (at < head.keys && head.positions[at] != 0) ++at;
    }
    end = Min(at, head.seen);
    for (int64_t i = queries - 1; i >= 0; --i) {
      ends[i] = at;
      if (head.positions != nullptr && head.positions[query + i] == 0) at = query + i;
    }
  }
};

// AddBias() adds the bias, times `factor`, to scores, SumBias() adds ds to the sums for its
// gradient. Lanes beyond the last query have none.
template <typename Tile, typename T>
void AddBias(const BasicAttentionHead<T>& head, const Tile& tile, int64_t query, int64_t key,
             float* st, float factor = 1) {
  if (head.bias == nullptr) return;
  for (int64_t j = 0; j < tile.keys; ++j) {
    const float* const bias = head.bias + query - (key + j) + head.keys - 1;
    float* const row = st + j * Tile::kWide;
#pragma omp simd
    for (int64_t q = tile.FirstLane(j); q < tile.queries; ++q) row[q] += factor * bias[q];
  }
}

template <typename Tile, typename T>
void SumBias(const BasicAttentionHead<T>& head, const Tile& tile, int64_t query, int64_t key,
             const float* dst) {
  if (head.bias_sums == nullptr) return;
  for (int64_t j = 0; j < tile.keys; ++j) {
    float* const sums = head.bias_sums + query - (key + j) + head.keys - 1;
    const float* const row = dst + j * Tile::kWide;
#pragma omp simd
    for (int64_t q = tile.FirstLane(j); q < tile.queries; ++q) sums[q] += row[q];
  }
}

template <typename T>
void ClearBiasSums(const BasicAttentionHead<T>& head) {
  if (head.bias_sums != nullptr) {
    Fill(head.bias_sums, head.bias_sums + head.seq + head.keys - 1, 0.0f);
  }
}

// Scores of keys that their queries do not see become -infinity.
template <typename Tile, typename T>
void MaskAll(const BasicAttentionHead<T>& head, const Span<Tile>& span, const Tile& tile,
             int64_t key, float* st) {
  Mask(tile, st);
  MaskDocuments(tile, span.starts, key, st);
  if (!head.causal) MaskEnds(tile, span.ends, key, st);
}

// The factor for the sums of query q of the tile, and its lse. It is 0 for a query that sees no
// key.
template <typename Tile, typename T>
float Inverse(const BasicAttentionHead<T>& head, const Span<Tile>& span, int64_t q,
              const float* sum) {
  return span.starts[q] < head.seen ? 1.0f / sum[q] : 0.0f;
}

template <typename Tile, typename T>
float LogSum(const BasicAttentionHead<T>& head, const Span<Tile>& span, int64_t q,
             const float* maximum, const float* sum) {
  return span.starts[q] < head.seen ? maximum[q] + __builtin_logf(sum[q]) : 0.0f;
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_LANES_H_
