// The ops of mixtures of experts as `bench ops` calls them.
// Tests: tests/trainer/bench/op_bench_test.cc
#ifndef FSDP_TRAIN_TRAINER_BENCH_EXPERT_CASES_H_
#define FSDP_TRAIN_TRAINER_BENCH_EXPERT_CASES_H_

#include <vector>

#include "trainer/bench/op_cases.h"

namespace fsdp {

// 16 experts, 4 a token, each an eighth as wide as the feed-forward layer. Their loads are equal,
// and fall as 1, 1/2, 1/3, ... (Zipf) for the products. Beside them, one product of as many rows.
void AddExperts(std::vector<OpCase>& cases, const OpShapes& shapes);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_EXPERT_CASES_H_
