// Attention of one head, for each instruction set (isa.h). Formulas: attention.h.
// Tests: tests/trainer/ops/attention_kernels_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_KERNELS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_KERNELS_H_

#include <cstdint>

namespace fsdp {

inline constexpr int64_t kAttentionMaxHeadDim = 256;

// Row i lies at data + i * stride and has head_dim elements.
template <typename T>
struct HeadRows {
  T* data;
  int64_t stride;
};

// Dropout of a head's probabilities: m of attention.h.
struct ProbabilityDraws {
  uint32_t threshold = 0;
  float scale = 1;  // 1 / (1 - rate).
  uint32_t site = 0, head = 0, key[2] = {};
};

// One sample's head of queries, with the keys and values of its group.
template <typename T>
struct BasicAttentionHead {
  const T *q, *k, *v;
  const int32_t* positions;  // [seq]; null: one document.
  int64_t q_stride, k_stride, v_stride, out_stride;
  int64_t seq, keys, seen, head_dim;  // The first `seen` of the keys may be seen.
  bool causal;
  float scale;  // Multiplies q . k.
  bool drops = false;
  ProbabilityDraws drop = {};
  // At i - j + keys - 1, for query i and key j. bias: added to the score, or null. bias_sums: in
  // backward the sums of ds, overwritten, or null.
  const float* bias = nullptr;
  float* bias_sums = nullptr;
};

using AttentionHead = BasicAttentionHead<float>;
using AttentionHeadBf16 = BasicAttentionHead<uint16_t>;  // Bits of bf16.

struct AttentionKernels {
  // out: rows out_stride apart. lse: [seq].
  void (*forward)(const AttentionHead& head, float* out, float* lse);
  // dk and dv are overwritten for the `first` head of a group, and added to for the others.
  void (*backward)(const AttentionHead& head, const float* out, const float* lse, const float* dout,
                   bool first, HeadRows<float> dq, HeadRows<float> dk, HeadRows<float> dv);
};

extern const AttentionKernels kAttentionAvx2, kAttentionAvx512;

// The same for bf16, with products of bf16. Floats and Pairs have the order of gemm_pairs.h and
// give the same bits: the first two use fused multiply-adds of floats, the third the instruction of
// processors with AVX512_BF16. Tiles have an order of their own (gemm_tiles.h), and the same bits
// emulated and by the instructions of processors with AMX.
struct AttentionKernelsBf16 {
  // Floats of memory that a head needs: for the factors made of k and v once per group, in backward
  // for the sums of dk and dv, and on tiles for those of dq and the factors made of queries.
  int64_t (*forward_memory)(int64_t seq, int64_t keys, int64_t head_dim);
  int64_t (*backward_memory)(int64_t seq, int64_t keys, int64_t head_dim);
  // `first`: memory holds nothing made of the head's k and v yet.
  void (*forward)(const AttentionHeadBf16& head, bool first, float* memory, uint16_t* out,
                  float* lse);
  // dk and dv are rounded and written after the `last` head of a group.
  void (*backward)(const AttentionHeadBf16& head, bool first, bool last, float* memory,
                   const uint16_t* out, const float* lse, const uint16_t* dout,
                   HeadRows<uint16_t> dq, HeadRows<uint16_t> dk, HeadRows<uint16_t> dv);
};

extern const AttentionKernelsBf16 kAttentionFloatsAvx2, kAttentionFloatsAvx512, kAttentionPairs;
extern const AttentionKernelsBf16 kAttentionTilesAvx2, kAttentionTilesAvx512, kAttentionTilesAmx;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_KERNELS_H_
