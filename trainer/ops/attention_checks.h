// What attention's ops check of their inputs and gradients, and how they count them.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_CHECKS_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_CHECKS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

using NamedViews = std::vector<std::pair<const char*, ConstView>>;

// Of attention.h, whoever computes it.
AttentionDims CheckAttention(const Arguments& args, const AttentionInputs& in);
// `results`: apart from all that is read.
void CheckAttentionResults(const Arguments& args, const AttentionInputs& in,
                           const NamedViews& results);
// `read`: what backward reads beside the inputs.
void CheckAttentionGradients(const Arguments& args, const AttentionDims& dims,
                             const AttentionInputs& in, const AttentionGradients& gradients,
                             const NamedViews& read);

// Tensors, each once, however many of q, k and v lie in it; then all else.
std::vector<Range> ReadsOf(const AttentionInputs& in);
std::vector<Range> WritesOf(const AttentionGradients& gradients);

// Bytes of `count` heads with so many rows.
double HeadBytes(const AttentionDims& dims, const ConstHeads& heads, int64_t rows);
double BytesOf(const AttentionDims& dims, const AttentionInputs& in);  // Of q, k and v.
double BytesOf(const AttentionDims& dims, const AttentionGradients& gradients);
// Of all that is read but q, k and v.
double OtherBytesOf(const AttentionInputs& in);

// QK^T and PV as MFU counts them: 2 products x 2 FLOPs; backward twice as many. Under a causal mask
// of half a square (PaLM, arXiv:2204.02311, appendix B).
double AttentionModelFlops(const AttentionDims& dims, AttentionMask mask);

inline constexpr double kDrawFlops = 15;  // Of dropout, for each probability.

// Bytes of the sums of a bias by head and distance, of `samples`; none without a bias.
int64_t DistanceBytes(const AttentionDims& dims, int64_t samples);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_CHECKS_H_
