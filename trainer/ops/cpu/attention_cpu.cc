#include "trainer/ops/cpu/attention_cpu.h"

#include <cmath>

#include "trainer/ops/cpu/attention_kernels.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

static_assert(kMaxHeadDim == kAttentionMaxHeadDim);

// Rows of head 0; those of head h begin head_dim h elements later.
struct AttentionData {
  HeadRows<const float> q, k, v;
  const int32_t* positions;
  const int32_t* keys = nullptr;  // Without: no dropout.
  ProbabilityDraws drop = {};     // Of sample 0's head 0, its key left out.
};

HeadRows<const float> Rows(const ConstHeads& heads) { return {heads.data(), heads.stride()}; }
HeadRows<float> Rows(const Heads& heads) { return {heads.data(), heads.stride()}; }

AttentionData Data(const AttentionInputs& in) {
  AttentionData data{Rows(in.q), Rows(in.k), Rows(in.v), in.positions.As<int32_t>()};
  if (in.dropout.rate > 0) {
    data.keys = in.dropout.keys.As<int32_t>();
    data.drop = {.threshold = static_cast<uint32_t>(std::ldexp(in.dropout.rate, 32)),
                 .scale = static_cast<float>(1 / (1 - in.dropout.rate)),
                 .site = in.dropout.site};
  }
  return data;
}

const AttentionKernels& Kernels() { return ForThisCpu(kAttentionAvx2, kAttentionAvx512); }

int64_t OutOffset(const AttentionDims& dims, int64_t sample, int64_t head) {
  return (sample * dims.seq * dims.heads + head) * dims.head_dim;
}

int64_t LseOffset(const AttentionDims& dims, int64_t sample, int64_t head) {
  return (sample * dims.heads + head) * dims.seq;
}

template <typename T>
HeadRows<T> At(const HeadRows<T>& rows, const AttentionDims& dims, int64_t sample, int64_t head) {
  return {rows.data + sample * dims.seq * rows.stride + head * dims.head_dim, rows.stride};
}

AttentionHead HeadOf(const AttentionDims& dims, const AttentionData& in, int64_t sample,
                     int64_t head) {
  const int64_t kv_head = head / dims.group();
  ProbabilityDraws drop = in.drop;
  if (in.keys != nullptr) {
    drop.head = static_cast<uint32_t>(head);
    for (int i = 0; i < 2; ++i) drop.key[i] = static_cast<uint32_t>(in.keys[2 * sample + i]);
  }
  return {.q = At(in.q, dims, sample, head).data,
          .k = At(in.k, dims, sample, kv_head).data,
          .v = At(in.v, dims, sample, kv_head).data,
          .positions = in.positions + sample * dims.seq,
          .q_stride = in.q.stride,
          .k_stride = in.k.stride,
          .v_stride = in.v.stride,
          .out_stride = dims.heads * dims.head_dim,
          .seq = dims.seq,
          .head_dim = dims.head_dim,
          .drops = in.keys != nullptr,
          .drop = drop};
}

}  // namespace

void AttentionForwardCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionInputs& inputs,
                         const View& out, const View& lse) {
  const AttentionData in = Data(inputs);
  pool.ParallelFor(dims.batch * dims.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / dims.heads, h = i % dims.heads;
      Kernels().forward(HeadOf(dims, in, sample, h), out.As<float>() + OutOffset(dims, sample, h),
                        lse.As<float>() + LseOffset(dims, sample, h));
    }
  });
}

void AttentionBackwardCpu(ThreadPool& pool, const AttentionDims& dims,
                          const AttentionInputs& inputs, const ConstView& out, const ConstView& lse,
                          const ConstView& dout, const AttentionGradients& gradients) {
  const AttentionData in = Data(inputs);
  const HeadRows<float> dq = Rows(gradients.q), dk = Rows(gradients.k), dv = Rows(gradients.v);
  const int64_t groups = dims.heads > 0 ? dims.kv_heads : 0;
  pool.ParallelFor(dims.batch * groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / groups, kv_head = i % groups;
      for (int64_t g = 0; g < dims.group(); ++g) {
        const int64_t h = kv_head * dims.group() + g;
        Kernels().backward(
            HeadOf(dims, in, sample, h), out.As<float>() + OutOffset(dims, sample, h),
            lse.As<float>() + LseOffset(dims, sample, h),
            dout.As<float>() + OutOffset(dims, sample, h), g == 0, At(dq, dims, sample, h),
            At(dk, dims, sample, kv_head), At(dv, dims, sample, kv_head));
      }
    }
  });
}

}  // namespace fsdp
