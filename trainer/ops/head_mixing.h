// The operands that mix the heads of attention behind its softmax (attention_math.h).
// Tests: tests/trainer/ops/attention_math_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_HEAD_MIXING_H_
#define FSDP_TRAIN_TRAINER_OPS_HEAD_MIXING_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "trainer/core/view.h"

namespace fsdp {

inline constexpr int64_t kMaxMixedHeads = 64;

// Each has the dtype of q, or fp32.
struct HeadMixing {
  ConstView matrix = {};             // [heads, heads]. Left out: heads stay apart.
  ConstView weight = {}, bias = {};  // [heads], the norm's.
  float eps = 0;

  bool Mixes() const { return matrix.shape.rank() > 0; }
};

template <typename Visit>
void ForEachAddress(HeadMixing& mixing, const Visit& visit) {
  visit(mixing.matrix);
  visit(mixing.weight);
  visit(mixing.bias);
}

// Added to; each of any of fp32, bf16 and fp16. Left out for a frozen parameter.
struct HeadMixingGradients {
  std::optional<View> matrix = {}, weight = {}, bias = {};

  int64_t count() const { return matrix.has_value() + weight.has_value() + bias.has_value(); }
};

template <typename Visit>
void ForEachAddress(HeadMixingGradients& gradients, const Visit& visit) {
  visit(gradients.matrix);
  visit(gradients.weight);
  visit(gradients.bias);
}

// The number of parts that gradients are summed over: first over the rows of queries in a part,
// then over parts in order. Part p has the rows from p rows / parts on.
inline int64_t HeadMixingParts(int64_t rows) { return std::min<int64_t>(rows, 128); }
// Floats of a part: those of the matrix, the weight and the bias.
inline int64_t HeadMixingSums(int64_t heads) { return heads * heads + 2 * heads; }

// Memory that attention's backward fills on its way.
struct AttentionMathWorkspace {
  View ds;           // [batch, heads, seq, keys]: dw, then dp, then ds.
  View bias_sums;    // Sums of ds by distance, fp32 [batch, heads, distances].
  View mixing_sums;  // fp32 [parts, HeadMixingSums(heads)].
};

template <typename Visit>
void ForEachAddress(AttentionMathWorkspace& workspace, const Visit& visit) {
  visit(workspace.ds);
  visit(workspace.bias_sums);
  visit(workspace.mixing_sums);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_HEAD_MIXING_H_
