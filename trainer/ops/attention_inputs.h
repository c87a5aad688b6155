// The operands of attention, with a cache (attention_cached.h) and without (attention.h).
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_INPUTS_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_INPUTS_H_

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/heads.h"

namespace fsdp {

inline constexpr int64_t kMaxHeadDim = 256;

struct AttentionDims {
  int64_t batch, seq, heads, kv_heads, head_dim;
  int64_t keys = seq;
  bool bias = false;  // Whether one is added to the scores.

  int64_t group() const { return heads / kv_heads; }
  // The number of distances from keys to queries. Distance j - i has the index j - i + seq - 1.
  int64_t distances() const { return std::max<int64_t>(0, seq + keys - 1); }
  auto operator<=>(const AttentionDims&) const = default;
};

struct AttentionCachedDims {
  int64_t batch, n, heads, kv_heads, head_dim, capacity;
};

struct AttentionDropout {
  double rate = 0;      // In [0, 1). 0: none, with the same bits.
  uint32_t site = 0;    // Tells the places of a model apart.
  ConstView keys = {};  // int32 [batch, 2], low word first (Batch). Not read without a rate.
};

// Adds table[h, buckets[j - i + seq - 1]] to the score of query i and key j in head h. The caller
// decides which bucket a distance belongs to.
struct AttentionBias {
  ConstView table = {};    // [heads of q, buckets], of the dtype of q. Left out: none is added.
  ConstView buckets = {};  // int32 [seq + keys - 1].
};

enum class AttentionMask {
  kCausal,  // Query i sees keys up to key i. There are as many keys as queries.
  kFull,    // Each query sees all keys, however many.
};

struct AttentionInputs {
  ConstHeads q, k, v;
  ConstView positions;
  AttentionDropout dropout = {};
  // For attention.h alone. cuDNN's need rows of one document each: cuDNN reads no positions.
  AttentionBackend backend = AttentionBackend::kOwn;
  // Only our own kernels support the rest, except that cuDNN's take a full mask and a scale.
  AttentionMask mask = AttentionMask::kCausal;
  ConstView lengths = {};  // int32 [batch], in [0, keys]. Left out: all keys are there to be seen.
  AttentionBias bias = {};
  std::optional<float> scale = {};  // Multiplies q . k; > 0. Not given: 1 / sqrt(head_dim).

  bool HasBias() const { return bias.table.shape.rank() > 0; }
  bool HasLengths() const { return lengths.shape.rank() > 0; }
  // A full mask needs positions only where rows hold several documents.
  bool HasPositions() const { return positions.shape.rank() > 0; }
  float Scale() const {
    return scale ? *scale : 1 / std::sqrt(static_cast<float>(q.tensor.shape[3]));
  }
};

template <typename Visit>
void ForEachAddress(AttentionInputs& in, const Visit& visit) {
  for (ConstHeads* heads : {&in.q, &in.k, &in.v}) visit(heads->tensor);
  visit(in.positions);
  visit(in.dropout.keys);
  visit(in.lengths);
  visit(in.bias.table);
  visit(in.bias.buckets);
}

struct AttentionGradients {
  Heads q, k, v;
  View bias = {};  // Has the table's shape. Left out: not computed.

  bool HasBias() const { return bias.shape.rank() > 0; }
};

template <typename Visit>
void ForEachAddress(AttentionGradients& gradients, const Visit& visit) {
  for (Heads* heads : {&gradients.q, &gradients.k, &gradients.v}) visit(heads->tensor);
  visit(gradients.bias);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_INPUTS_H_
