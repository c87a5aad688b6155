// Measurements that are already there: the JSON of `bench gemm|ops|comm --json`, and the
// result.json of tools/gpu/kit, of which the rows of the parts `products`, `ops` and `nccl` count.
// Results of `bench ops` that name no shapes are of an older program: their operations have rates,
// but neither op_terms nor op_sides, for which the shapes of products are needed.
// Tests: tests/trainer/bench/calibration_test.cc
#ifndef FSDP_TRAIN_TRAINER_BENCH_CALIBRATION_FILES_H_
#define FSDP_TRAIN_TRAINER_BENCH_CALIBRATION_FILES_H_

#include <string>

#include "trainer/bench/calibration.h"

namespace fsdp {

// Adds the file's measurements. Throws ConfigError, with the path, where the file cannot be read or
// is no such result, and where it is of another device than `measured` already has.
void AddMeasurements(const std::string& path, Measurements& measured);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_CALIBRATION_FILES_H_
