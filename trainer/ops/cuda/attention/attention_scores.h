// The scores of attention in memory, for kernels that hold all of them.
// Tests: tests/trainer/ops/attention_math_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_SCORES_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_SCORES_H_

#include <cstdint>

#include "trainer/ops/cuda/attention/attention_call.h"
#include "trainer/ops/cuda/attention/attention_draws.h"
#include "trainer/ops/cuda/launch.h"

namespace fsdp {

// [batch, heads, seq, keys]
template <typename T>
struct ScoresCuda {
  T* data;
  int heads, seq, keys;

  __device__ T* Row(int sample, int head, int query) const {
    return data + ((static_cast<int64_t>(sample) * heads + head) * seq + query) * keys;
  }
};
template <typename T, typename AnyView>
auto ScoresOf(const AnyView& view) {
  auto* const data =
      reinterpret_cast<std::conditional_t<std::is_same_v<AnyView, View>, T*, const T*>>(view.data);
  return ScoresCuda<std::remove_pointer_t<decltype(data + 0)>>{
      data, static_cast<int>(view.shape[1]), static_cast<int>(view.shape[2]),
      static_cast<int>(view.shape[3])};
}

// The keys that a query sees: the first so many.
struct SeenKeysCuda {
  int end;

  __device__ SeenKeysCuda(const AttentionCall& call, int sample, int query)
      : end(call.Seen<AttentionKind::kAny>(sample)) {
    if (call.causal) end = min(end, query + 1);
  }
  __device__ bool Has(int key) const { return key < end; }

  // body(key, m of attention.h) for this lane's keys, four by four: one draw has the m of four
  // keys.
  template <typename Body>
  __device__ void ForEach(const AttentionDraws& draws, bool drops, int query,
                          const Body& body) const {
    for (int four = 4 * Lane(); four < end; four += 4 * kWarp) {
      float m[4] = {1, 1, 1, 1};
      if (drops) DrawFourKeys(draws, query, four, m);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (Has(four + e)) body(four + e, m[e]);
      }
    }
  }
  // Zeroes the elements of a row of `keys` that are not seen.
  template <typename T>
  __device__ void ZeroOthers(T* row, int keys) const {
    for (int key = Lane(); key < keys; key += kWarp) {
      if (!Has(key)) row[key] = FromFloat<T>(0.0f);
    }
  }
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_SCORES_H_
