// The persistent memory of an executor: shards, slots, and staging memory for the host.
// Tests: tests/trainer/fsdp/executor_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_MEMORY_H_
#define FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_MEMORY_H_

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/fsdp/executor_options.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/model_buffers.h"
#include "trainer/fsdp/moves.h"
#include "trainer/fsdp/quantized_tables.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/fsdp/spilled_shards.h"
#include "trainer/fsdp/storage.h"
#include "trainer/fsdp/unit_memory.h"
#include "trainer/ops/gemm_library.h"
#include "trainer/ops/loss_scaler_options.h"

namespace fsdp {

// The step's scalars, fp32, as they are on the device.
struct StepScalars {
  float loss = 0;         // Mean over targets, of this step alone.
  float sum_squares = 0;  // The gradient's, without its loss scale and before mean_scale.
  float save = 0;         // Ranks that were asked for a checkpoint.
  float found_inf = 0;    // Elements of the gradient that are not finite, if a scale is in use.
  float mean_scale = 0;   // T0 / T.
  float grad_norm = 0;    // Before clipping.
  float coefficient = 0;  // Multiplies the gradient; NaN: the step changed nothing.
  float divided_coefficient = 0;  // The same for gradients that stay divided:
                                  // ExecutorMemory::divided.
  float loss_scale = 0;           // This step's; 0: none is in use.
  float divided_loss_scale = 0;
  LossScalerState scaler;  // After the step.

  // An evaluation's second sum (nn/eval_metric.h), if there is one. An evaluation has no gradient.
  float second_sum() const { return sum_squares; }
};
inline constexpr int kNumScalars = sizeof(StepScalars) / sizeof(float);

// The scalars' indexes. Those up to kSave are summed over ranks, and kFound where a scale is in
// use.
enum Scalar {
  kLoss,
  kSumSquares,
  kSave,
  kFound,
  kMeanScale,
  kGradNorm,
  kCoefficient,
  kDividedCoefficient,
  kLossScale,
  kDividedLossScale,
  kScaler
};

// Device memory, unless said otherwise.
struct ExecutorMemory {
  struct StagedBatch {
    Batch device, host;
    View device_bytes, host_bytes;  // The whole memory of `device` and `host`.
  };

  // Begins phase kPersistent. `eval` uses slots of `train`. `kernels`: the device type whose
  // workspaces are needed.
  ExecutorMemory(PhasedAllocator& allocator, const Layout& layout, const Schedule& train,
                 const Schedule& eval, const Model& model, const ExecutorOptions& options,
                 DeviceType kernels);

  // Where a flat parameter's memory of a use lies: the whole, or the use's part. Empty where there
  // is none now.
  PlacedView At(const Use& use, int flat) const;
  // A shard that lives as long as the run, or the one whose memory it shares.
  const View& Shard(Resource what, int flat) const;
  // Sets where the action's unit has the memory that the action takes; Give() unsets it.
  void Take(const Action& action, Mode mode, size_t index);
  void Give(const Action& action);

  Storage storage;
  std::unique_ptr<UnitMemory> units;
  SpilledShards spilled;
  // Divides sums over replicas in fp16: a power of two (loss_scale.h).
  float divisor = 1;
  // By flat parameter: whether the gradient stays divided. An fp16 gradient does, because fp16
  // could not hold the sum; readers multiply.
  std::vector<bool> divided;
  // By flat parameter, where nothing is gathered: the weights that the step computes with.
  std::vector<View> in_use;
  std::vector<QuantizedTables> quantized;  // By flat parameter.
  StagedBatch batches[2];
  View upload;  // Host memory: initial values on their way.
  ModelBuffers buffers;
  View scalars, reports[2];       // StepScalars: the step's, and the host's copies, which have the
                                  // buffers' tallies before them.
  View inputs, staged_inputs[2];  // StepInputs: the step's, and where the host writes them.
  View host_coefficient;          // Pinned, for updates on the host: coefficient and divided
                                  // coefficient, or the first alone.
  View scaler;                    // LossScalerState. Empty: none is in use.
  View squares;                   // The workspace for sums of squares.
  GemmResources products;         // On CUDA a workspace; the library has an owner elsewhere.
  // [1], by flat parameter: the factor of its gradient, where it is updated.
  std::vector<View> coefficients;

 private:
  void TakeShards(PhasedAllocator& allocator, const Layout& layout);
  void TakeStep(PhasedAllocator& allocator, const Model& model, const ExecutorOptions& options,
                DeviceType kernels);
  View& Bytes(const Use& use) { return bytes_[static_cast<int>(use.what)][use.of]; }

  std::array<std::vector<View>, kNumResources> shards_;  // By flat parameter: Home::kRun.
  std::array<std::vector<View>, kNumResources> bytes_;   // By unit: Home::kUnit.
  std::vector<View> update_slots_;                       // Bytes, pinned.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_MEMORY_H_
