// How fast the ops of a training step run, by the cost that each of them states, and how near that
// is to what the machine can do.
#ifndef FSDP_TRAIN_TRAINER_BENCH_OP_BENCH_H_
#define FSDP_TRAIN_TRAINER_BENCH_OP_BENCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/bench/calibration.h"
#include "trainer/bench/op_cases.h"
#include "trainer/core/dtype.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/cudnn/attention_cudnn.h"
#include "trainer/ops/cudnn/convolution_cudnn.h"
#include "trainer/runtime/device.h"

namespace fsdp {

struct OpBenchOptions {
  OpShapes shapes;
  int threads = 1;
  double seconds = 0.3;           // Each op is called for at least this long, and three times.
  std::string only = {};          // Ops whose name contains this; empty: all.
  DType dtype = DType::kFloat32;  // Activations' and weights': fp32, bf16, fp16.
  DeviceType device = DeviceType::kCpu;  // Or kCuda, if the program was built with it.
  int gpu = 0;                           // Among the visible ones.
  bool own_kernels = false;  // On a GPU: products by kernels of ours, not by the library of a run.
  AttentionBackend attention = AttentionBackend::kOwn;  // That of BenchedAttention().
  ConvolutionBackend convolution = {};                  // That of BenchedConvolutions().
};

// The cost that one call states to its stream.
struct OpCost {
  double flops = 0;
  double bytes = 0;  // Read and written.
};

struct OpTime {
  std::string name;
  OpCost cost;
  double seconds =
      0;  // The fastest call: others on the machine only slow it. On a GPU the fastest of eight.
};

// Limits of the machine with as many threads, measured here.
struct OpLimits {
  double flops_per_s = 0;  // A product at the shape of the largest in a block, without a bias.
  double bytes_per_s = 0;  // Copy() of tensors that no cache holds, read and written bytes.

  // Seconds of doing that many FLOPs alone, or of moving that many bytes, whichever takes longer.
  double Seconds(const OpCost& cost) const;
};

// The attention that a run on this device would take at these shapes, or ours where the options say
// so: for OpBenchOptions::attention, and by name.
FoundAttention BenchedAttention(const OpBenchOptions& options);

// The same for the convolutions among the ops that are asked for: for OpBenchOptions::convolution.
FoundConvolutions BenchedConvolutions(const OpBenchOptions& options);

// The names of the ops that are asked for, in the order in which they are measured. Throws
// std::invalid_argument where there is none, or the shapes are not an attention's.
std::vector<std::string> BenchedOps(const OpBenchOptions& options);

// Throws DeviceError, MemoryError.
OpLimits MeasureLimits(const OpBenchOptions& options);

// Calls `measured` as each is done. Blocks. Throws std::invalid_argument as above, DeviceError,
// MemoryError.
std::vector<OpTime> MeasureOps(const OpBenchOptions& options,
                               const std::function<void(const OpTime&)>& measured);

// Calls the ops that `next` names, one at a time until it returns "": each for options.seconds as
// above. The tensors of an op are kept from its first turn to the end, so that a turn costs no
// allocation. Blocks. Throws as MeasureOps(), and std::invalid_argument where there is no such op
// among those that are asked for.
void AskOps(const OpBenchOptions& options, const std::function<std::string()>& next,
            const std::function<void(const OpTime&)>& measured);

// The sum over the operations that one call enqueues. Throws std::invalid_argument where there is
// no such op.
OpCost CostOfOp(const OpBenchOptions& options, const std::string& name);

// The operations that the cases of `bench ops` enqueue, each by its own name and with its own time:
// what a price list wants, where op_bench.h has what people read.

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

#endif  // FSDP_TRAIN_TRAINER_BENCH_OP_BENCH_H_
