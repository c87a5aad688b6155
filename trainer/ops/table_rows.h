// Copies rows of a table by their places, and finds the places of one round of an exchange of rows
// between ranks.
// Tests: tests/trainer/ops/table_rows_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_TABLE_ROWS_H_
#define FSDP_TRAIN_TRAINER_OPS_TABLE_ROWS_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// The order of the rows that ranks exchange, and their division into rounds.

// A rank asks each owner for rows in the order of these keys. Different rows have different keys.
// The rows of one round lie side by side, whatever the number of rounds. A few rows that all ranks
// ask for fall into different rounds.
inline constexpr uint64_t kRowKeyFactor = 0x9E3779B97F4A7C15u;  // Odd; 2^64 over the golden ratio.
constexpr uint64_t RowKey(int64_t row) { return static_cast<uint64_t>(row) * kRowKeyFactor; }
// 0 to 2^log2_rounds - 1: the key's highest bits. More rounds divide those of fewer.
constexpr int64_t RoundOf(uint64_t key, int log2_rounds) {
  return log2_rounds == 0 ? 0 : static_cast<int64_t>(key >> (64 - log2_rounds));
}

// One round, and the number of rounds.
struct ExchangeRound {
  int64_t round = 0;
  int log2_rounds = 0;  // In [0, 62].
};

// to[i, :] = from[places[i], :], zeros where places[i] is -1. from [n, width], to [m, width], fp32
// or bf16, both of one dtype; places int64 [m], each below n. Overwrites to, which overlaps nothing
// else. No workspace. This op and those below throw std::invalid_argument before anything is
// enqueued.
void TakeRows(Stream& stream, ConstView from, ConstView places, View to);

// to[places[i], :] = from[i, :] where places[i] is not -1. No place occurs twice. Rows of `to`
// without a place stay. Operands as above.
void PutRows(Stream& stream, ConstView from, ConstView places, View to);

// The rows of one round, by owner. rows int64 [n]: sorted by owner, then by rising RowKey(), each
// once; owners int32 [W + 1]: where each owner's rows begin, and the end of the last, at most n.
//   places int64 [W, C]: for owner w the places in `rows` of its rows in round `round` of
//                        2^log2_rounds, then -1
//   ids    int64 [W, C]: these rows themselves, then -1
// No owner has more than C rows in a round: the caller has chosen the rounds so. places and ids are
// overwritten and overlap nothing else.
void PlacesOfRound(Stream& stream, const ExchangeRound& round, ConstView rows, ConstView owners,
                   View places, View ids);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_TABLE_ROWS_H_
