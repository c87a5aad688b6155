// Token and position embedding:   y[i, :] = wte[tokens[i], :] + wpe[positions[i], :]
// or, where positions and the table of positions are left out, that of tokens alone.
//
// wte, dwte: [vocab, cols], wpe, dwpe: [max_positions, cols], y, dy: [rows, cols], fp32;
// tokens, positions: [rows], int32. Nothing is saved; no workspace.
// Cost: an addition per element read; of the tables at most `rows` rows each are touched.
// Throws std::invalid_argument before anything is enqueued. Every token and position lies in its
// table: whoever loads a batch has seen to it (data/check_row.h).
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
// Each element is summed in the order of i, so its bits do not depend on the number of threads.
// Either may be left out: a frozen table, or no positions. dwte and dwpe overlap nothing else.
void EmbeddingBackward(Stream& stream, ConstView tokens, std::optional<ConstView> positions,
                       ConstView dy, std::optional<View> dwte, std::optional<View> dwpe);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_EMBEDDING_H_
