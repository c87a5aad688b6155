// Checks of the inputs and gradients of attention's ops, and counts of their bytes and FLOPs.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_CHECKS_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_CHECKS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/range.h"

namespace fsdp {

using NamedViews = std::vector<std::pair<const char*, ConstView>>;

// Checks the inputs of attention.h, for each of its backends.
AttentionDims CheckAttention(const Arguments& args, const AttentionInputs& in);
// `results` must overlap nothing that is read.
void CheckAttentionResults(const Arguments& args, const AttentionInputs& in,
                           const NamedViews& results);
// `read`: the operands of backward beside the inputs.
void CheckAttentionGradients(const Arguments& args, const AttentionDims& dims,
                             const AttentionInputs& in, const AttentionGradients& gradients,
                             const NamedViews& read);

// Each tensor once, however many of q, k and v lie in it; then all else.
std::vector<Range> ReadsOf(const AttentionInputs& in);
std::vector<Range> WritesOf(const AttentionGradients& gradients);

// Bytes of `count` heads with `rows` rows.
double HeadBytes(const AttentionDims& dims, const ConstHeads& heads, int64_t rows);
double BytesOf(const AttentionDims& dims, const AttentionInputs& in);  // Bytes of q, k and v.
double BytesOf(const AttentionDims& dims, const AttentionGradients& gradients);
// Bytes of everything that is read beside q, k and v.
double OtherBytesOf(const AttentionInputs& in);

// FLOPs of QK^T and PV as MFU counts them: 2 products x 2 FLOPs; backward has twice as many. A
// causal mask counts half a square (PaLM, arXiv:2204.02311, appendix B).
double AttentionModelFlops(const AttentionDims& dims, AttentionMask mask);

inline constexpr double kDrawFlops = 15;  // For each probability under dropout.

// Bytes of a bias's sums by head and distance, for `samples` samples; 0 without a bias.
int64_t DistanceBytes(const AttentionDims& dims, int64_t samples);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_CHECKS_H_
