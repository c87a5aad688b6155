// The persistent memory of an executor: shards, slots, and what is staged for the host.
// Tests: tests/trainer/fsdp/executor_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_MEMORY_H_
#define FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_MEMORY_H_

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/model_buffers.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/moves.h"
#include "trainer/fsdp/quantized_tables.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/fsdp/spilled_shards.h"
#include "trainer/fsdp/storage.h"
#include "trainer/fsdp/unit_memory.h"
#include "trainer/ops/gemm_library.h"
#include "trainer/ops/loss_scaler.h"

namespace fsdp {

// The step's scalars, fp32, as they are on the device.
struct StepScalars {
  float loss = 0;         // Mean over targets, of this step alone.
  float sum_squares = 0;  // Of the gradient, without its loss scale and before mean_scale.
  float stop = 0;         // Ranks that were asked to stop.
  float save = 0;         // Ranks that were asked for a checkpoint.
  float found_inf = 0;    // Elements of the gradient that are not finite, if a scale is in use.
  float mean_scale = 0;   // T0 / T.
  float grad_norm = 0;    // Before clipping.
  float coefficient = 0;  // What multiplies the gradient; NaN: the step changed nothing.
  float divided_coefficient = 0;  // The same, of what stays divided: ExecutorMemory::divided.
  float loss_scale = 0;           // Of this step; 0: none is in use.
  float divided_loss_scale = 0;
  LossScalerState scaler;  // After it.

  // Of an evaluation, which has no gradient: that of nn/eval_metric.h, if there is one.
  float second_sum() const { return sum_squares; }
};
inline constexpr int kNumScalars = sizeof(StepScalars) / sizeof(float);

// Where they lie. Those up to kSave are summed over ranks, and kFound where a scale is in use.
enum Scalar {
  kLoss,
  kSumSquares,
  kStop,
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

// Of the device, where nothing else is said.
struct ExecutorMemory {
  struct StagedBatch {
    Batch device, host;
    View device_bytes, host_bytes;  // All of it, of which they are parts.
  };

  // Begins phase kPersistent. `eval`: uses slots of `train`. `kernels`: whose workspaces are
  // needed.
  ExecutorMemory(PhasedAllocator& allocator, const Layout& layout, const Schedule& train,
                 const Schedule& eval, const Model& model, const ExecutorOptions& options,
                 DeviceType kernels);

  // Where a flat parameter's part in a use is: all of it, or that of the use's part; empty where
  // there is none, now.
  Located At(const Use& use, int flat) const;
  // A shard that lives as long as the run, or the thing whose memory it shares.
  const View& Shard(Resource what, int flat) const;
  // Where the action's unit has what the action takes, and gives back, from here on.
  void Take(const Action& action, Mode mode, size_t index);
  void Give(const Action& action);

  Storage storage;
  std::unique_ptr<UnitMemory> units;
  SpilledShards spilled;
  // Sums over replicas in fp16 are divided by it: a power of two (loss_scale.h).
  float divisor = 1;
  // By flat parameter: whether the gradient is fp16 itself, which could not hold the sum: it stays
  // divided, and whoever reads it multiplies.
  std::vector<bool> divided;
  // By flat parameter, where nothing is gathered: what the step computes with.
  std::vector<View> in_use;
  std::vector<QuantizedTables> quantized;  // By flat parameter.
  StagedBatch batches[2];
  View upload;  // Host memory: of initial values, what is on its way.
  ModelBuffers buffers;
  View scalars, reports[2];       // StepScalars: the step's, and what the host reads.
  View inputs, staged_inputs[2];  // StepInputs: the step's, and where the host writes them.
  View host_coefficient;          // Pinned, for updates of the host: the same, or both.
  View scaler;                    // LossScalerState. Empty: none is in use.
  View squares;                   // The workspace of their sums.
  GemmResources products;         // On CUDA a workspace; the library is whose it is.
  // [1], by flat parameter: what multiplies its gradient, where it is updated.
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
