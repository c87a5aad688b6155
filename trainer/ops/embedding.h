// Token and position embedding:   y[i, :] = wte[tokens[i], :] + wpe[positions[i], :]
// Positions and their table may be left out; then   y[i, :] = wte[tokens[i], :]
//
// y, dy: [rows, cols], fp32, bf16 or fp16; wte: [vocab, cols], wpe: [max_positions, cols], of y's
// dtype or fp32; dwte, dwpe, like them, each of any of the three; tokens, positions: [rows], int32.
// Added in fp32, rounded once. Nothing is saved; no workspace.
// Cost: one addition per element read; at most `rows` rows of each table are touched.
// Throws std::invalid_argument before anything is enqueued. Every token and position lies in its
// table: the loader of a batch has checked it (data/check_row.h).
#ifndef FSDP_TRAIN_TRAINER_OPS_EMBEDDING_H_
#define FSDP_TRAIN_TRAINER_OPS_EMBEDDING_H_

#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Overwrites y, which overlaps nothing else.
void EmbeddingForward(Stream& stream, ConstView tokens, std::optional<ConstView> positions,
                      ConstView wte, std::optional<ConstView> wpe, View y);

//   dwte[tokens[i], :] += dy[i, :]     dwpe[positions[i], :] += dy[i, :]
// order: [rows], int32: 0 to rows - 1 sorted by token, rising within a token, as a batch brings it.
// Each element is summed in fp32, from its old value on in the order of i, and rounded once, so its
// bits do not depend on the number of threads. Either may be left out: a frozen table, or no
// positions. dwte and dwpe overlap nothing else.
void EmbeddingBackward(Stream& stream, ConstView tokens, ConstView order,
                       std::optional<ConstView> positions, ConstView dy, std::optional<View> dwte,
                       std::optional<View> dwpe);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_EMBEDDING_H_
