// The operations that the cases of `bench ops` enqueue, each by its own name and with its own time:
// what a price list wants, where op_bench.h has what people read.
// Tests: tests/trainer/bench/calibration_test.cc
#ifndef FSDP_TRAIN_TRAINER_BENCH_OP_RATES_H_
#define FSDP_TRAIN_TRAINER_BENCH_OP_RATES_H_

#include <optional>
#include <string>
#include <vector>

#include "trainer/bench/calibration.h"
#include "trainer/bench/op_bench.h"

namespace fsdp {

// The operations of a case, in their order; seconds are 0. Collectives and waits do not count.
std::vector<TimedWork> OperationsOf(const OpBenchOptions& options, const OpCase& op);

// The one operation of a case by that name that has most of its FLOPs, or of its bytes; nullopt:
// there is no such case. The options' shapes, dtype and device count. Throws std::invalid_argument
// as OpCases().
std::optional<TimedWork> MainOperationOf(const std::string& name, const OpBenchOptions& options);

// Whether the time of the case stands for its operation in a run of this dtype: most updates of
// AdamW are of other recipes.
bool IsUsual(const OpCase& op, DType dtype);

// Calls each usual case for options.seconds, and twice at the least, and takes the shortest time of
// each operation from the device's trace. On a CPU a call finds its operands where a step does: not
// in the caches nearest to the cores, unless options.seconds is 0. Blocks. Throws DeviceError,
// MemoryError.
std::vector<TimedWork> MeasureOperations(const OpBenchOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_OP_RATES_H_
