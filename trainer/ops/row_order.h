// The order of the rows that ranks exchange, and their division into rounds.
// Tests: tests/trainer/ops/table_rows_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ROW_ORDER_H_
#define FSDP_TRAIN_TRAINER_OPS_ROW_ORDER_H_

#include <cstdint>

namespace fsdp {

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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ROW_ORDER_H_
