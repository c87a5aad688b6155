// What the kernels of attention are told of a call, forward and backward.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_CALL_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_CALL_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/cuda/attention_draws.h"
#include "trainer/ops/cuda/launch.h"

namespace fsdp {

// exp(x) is exp2(x log2(e)), which GPUs have an instruction for.
inline constexpr float kLog2E = 1.4426950408889634f;

struct AttentionCall {
  int batch, seq, heads, group;
  float scale;  // Of q . k.
  const int32_t* positions;
  bool drops;
  AttentionDraws draws;  // Without head and key.
  const int32_t* keys;

  __device__ int Start(int sample, int query) const {
    return query - positions[static_cast<int64_t>(sample) * seq + query];
  }
  __device__ AttentionDraws DrawsOf(int sample, int head) const {
    AttentionDraws of = draws;
    if (!drops) return of;
    of.head = static_cast<uint32_t>(head);
    of.key[0] = static_cast<uint32_t>(keys[2 * static_cast<int64_t>(sample)]);
    of.key[1] = static_cast<uint32_t>(keys[2 * static_cast<int64_t>(sample) + 1]);
    return of;
  }
  // Of lse and dout . out.
  __device__ int64_t RowOfQueries(int sample, int head) const {
    return (static_cast<int64_t>(sample) * heads + head) * seq;
  }
};

// Which tile, sample and head (of `heads`) is the block's: heads of samples one after the other,
// then the next tile.
struct AttentionPlace {
  int tile, sample, head;
  __device__ AttentionPlace(int batch, int heads)
      : tile(static_cast<int>(blockIdx.x / (static_cast<unsigned>(batch) * heads))),
        sample(static_cast<int>(blockIdx.x % (static_cast<unsigned>(batch) * heads) / heads)),
        head(static_cast<int>(blockIdx.x % heads)) {}
};

inline AttentionCall AttentionCallOf(const AttentionDims& dims, const AttentionInputs& in) {
  AttentionCall call{.batch = static_cast<int>(dims.batch),
                     .seq = static_cast<int>(dims.seq),
                     .heads = static_cast<int>(dims.heads),
                     .group = static_cast<int>(dims.group()),
                     .scale = in.Scale(),
                     .positions = in.positions.As<int32_t>(),
                     .drops = in.dropout.rate > 0,
                     .draws = {},
                     .keys = nullptr};
  if (call.drops) {
    call.draws.threshold = static_cast<uint32_t>(std::ldexp(in.dropout.rate, 32));
    call.draws.scale = static_cast<float>(1 / (1 - in.dropout.rate));
    call.draws.site = in.dropout.site;
    call.keys = in.dropout.keys.As<int32_t>();
  }
  return call;
}

// f(Is<T>(), columns) for columns of tiles that hold head_dim elements.
template <typename Function>
void ForAttentionTiles(DType dtype, int64_t head_dim, const Function& f) {
  ForFloat(dtype, [&](auto is) {
    if (head_dim <= 64) return f(is, std::integral_constant<int, 64>());
    if (head_dim <= 128) return f(is, std::integral_constant<int, 128>());
    return f(is, std::integral_constant<int, 256>());
  });
}

inline dim3 AttentionGrid(const AttentionDims& dims, int64_t heads, int64_t rows) {
  return dim3(static_cast<unsigned>(CeilDiv(dims.seq, rows) * dims.batch * heads));
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_CALL_H_
