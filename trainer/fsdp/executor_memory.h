// The persistent memory of an executor: shards, slots, and what is staged for the host.
// Tests: tests/trainer/fsdp/executor_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_MEMORY_H_
#define FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_MEMORY_H_

#include <cstddef>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/fsdp/caching_buffers.h"
#include "trainer/fsdp/carver.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/model_buffers.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/offload.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/fsdp/slot_places.h"
#include "trainer/fsdp/spilled_shards.h"
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

// An empty view where there are no elements.
View NewPersistent(PhasedAllocator& allocator, int64_t elements, MemoryUse use, DType dtype);

// Of the device, where nothing else is said.
struct ExecutorMemory {
  struct StagedBatch {
    Batch device, host;
    View device_bytes, host_bytes;  // All of it, of which they are parts.
  };
  struct OwnMemory {
    View value, gradient;  // Bytes. Empty where the unit uses slots, or is not in use.
    View shard;            // Likewise, of the gradient, on its way to host memory.
  };

  // Begins phase kPersistent. `eval`: uses slots of `train`. `kernels`: whose workspaces are
  // needed.
  ExecutorMemory(PhasedAllocator& allocator, const Layout& layout, const Schedule& train,
                 const Schedule& eval, const Model& model, const ExecutorOptions& options,
                 DeviceType kernels);

  // Of a schedule that takes the place of this mode's, with the same slots.
  void PlaceSlots(Mode mode, const Schedule& schedule, const Layout& layout);

  // Where the unit of a schedule's action `index` lies: in a slot, or in memory of its own.
  std::byte* GatheredAt(const Action& action, Mode mode, size_t index) const;
  std::byte* GradientAt(const Action& action, size_t index) const;

  // Not null with `buffers: caching`: then there are no slots of device memory and nothing else of
  // it for units, but what they take while they are in use.
  CachingBuffers* caching = nullptr;
  View gather_slots, gradient_slots;             // Bytes: of all of them.
  SlotPlaces gather_places[2], gradient_places;  // There. Of gathers by Mode.
  std::vector<View> shard_slots;                 // Bytes.
  std::vector<View> update_slots;                // Likewise, pinned.
  std::vector<ShardMemory> places;               // By flat parameter.
  SpilledShards spilled;
  std::vector<View> masters, compute_shards, gradients;  // Likewise; see Executor.
  // Of sums over replicas that are rounded to fp16; a power of two (loss_scale.h).
  float divisor = 1;
  // Likewise: whether the gradient is fp16 itself, which could not hold the sum: it stays divided,
  // and whoever reads it multiplies.
  std::vector<bool> divided;
  // Likewise: what is evaluated in place of masters that are computed with themselves, where
  // nothing is gathered. Empty where there is another place.
  std::vector<View> averages;
  // Likewise: this rank's part of what backward gathers over fewer ranks. Empty where it does not.
  std::vector<View> secondary;
  std::vector<OwnMemory> units;  // By Layout::units.
  View staging;                  // Bytes: sums, before they are added to what is there.
  View wire;                     // Bytes: a gradient as it travels, where that is another dtype.
  View replica_wire;             // Likewise, a shard on its way between replicas.
  StagedBatch batches[2];
  View upload;  // Host memory: of initial values, what is on its way.
  ModelBuffers buffers;
  View scalars, reports[2];       // StepScalars: the step's, and what the host reads.
  View inputs, staged_inputs[2];  // StepInputs: the step's, and where the host writes them.
  View leaving, coming;           // Pinned, bytes: of activations between device and disk.
  View host_coefficient;          // Pinned, for updates of the host: the same, or both.
  View fetch;                     // fp32 or less: what is cast behind its way from the host.
  View scaler;                    // LossScalerState. Empty: none is in use.
  View squares;                   // The workspace of their sums.
  View gemm_workspace;            // GemmResources::workspace: on CUDA alone.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_MEMORY_H_
