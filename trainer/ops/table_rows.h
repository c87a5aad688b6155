// Rows of a table by their places, and the places of one round of an exchange of them between
// ranks.
// Tests: tests/trainer/ops/table_rows_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_TABLE_ROWS_H_
#define FSDP_TRAIN_TRAINER_OPS_TABLE_ROWS_H_

#include "trainer/core/view.h"
#include "trainer/ops/row_order.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// to[i, :] = from[places[i], :], zeros where places[i] is -1. from [n, width], to [m, width], fp32
// or bf16, both of one dtype; places int64 [m], each below n. Overwrites to, which overlaps nothing
// else. No workspace. Throws std::invalid_argument before anything is enqueued, as those below do.
void TakeRows(Stream& stream, ConstView from, ConstView places, View to);

// to[places[i], :] = from[i, :] where places[i] is not -1: no place twice. As above; rows of `to`
// that no place names stay.
void PutRows(Stream& stream, ConstView from, ConstView places, View to);

// The rows of one round, by owner. rows int64 [n]: by owner and, of one, by rising RowKey(), each
// once; owners int32 [W + 1]: where each owner's begin, and their end, at most n.
//   places int64 [W, C]: of owner w's rows in round `round` of 2^log2_rounds the places in `rows`,
//                        then -1
//   ids    int64 [W, C]: these rows themselves, then -1
// No owner has more than C rows in a round: who chose the rounds has seen to it. Both are
// overwritten and overlap nothing else.
void PlacesOfRound(Stream& stream, const ExchangeRound& round, ConstView rows, ConstView owners,
                   View places, View ids);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_TABLE_ROWS_H_
