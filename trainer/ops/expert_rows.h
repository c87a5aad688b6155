// Rows of tokens sorted by expert, and the way back to tokens. T tokens, k choices a token, N
// experts; rows = T k. All throw std::invalid_argument before anything is enqueued; no workspace.
// Tests: tests/trainer/ops/expert_rows_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_EXPERT_ROWS_H_
#define FSDP_TRAIN_TRAINER_OPS_EXPERT_ROWS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Gives each choice a row: by expert, among an expert's by token (of one token's, by choice).
// Nothing is dropped. choices int32 [T, k]: in [0, N), or -1 for padding, which has no row. All
// results are int32 and overwritten:
//   offsets [N + 1]  expert e's rows are [offsets[e], offsets[e + 1])
//   tokens  [rows]   each row's token. Rows from offsets[N] on belong to no expert: their token is
//                    0, and no op reads or writes them.
//   places  [T, k]   the row of each choice, -1 for padding
void GroupRows(Stream& stream, ConstView choices, View offsets, View tokens, View places);

// out[t, :] = base[t, :] + sum_j rows[places[t, j], :], in fp32 in the order of j, rounded once; a
// place of -1 adds nothing. rows [R, h], base and out [T, h]: fp32, bf16 or fp16, all of one dtype;
// places int32 [T, k], below R. base may be left out, which is 0, or be out itself.
void CombineRows(Stream& stream, ConstView rows, ConstView places, std::optional<ConstView> base,
                 View out);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_EXPERT_ROWS_H_
