#include "trainer/fsdp/executor_memory.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/fsdp/loss_scale.h"
#include "trainer/nn/model.h"
#include "trainer/ops/loss_scaler.h"
#include "trainer/ops/reductions.h"
#include "trainer/ops/step_parameters.h"

namespace fsdp {
namespace {

// Initial values go to the device in pieces of 4 MiB.
constexpr int64_t kUploadElements = int64_t{1} << 20;

Batch NewBatch(PhasedAllocator& allocator, const BatchSpec& spec, int64_t rows, MemoryPlace place,
               View* bytes) {
  *bytes = NewBytes(allocator, BatchBytes(spec, rows), {MemoryKind::kActivations, place});
  return CarveBatch(spec, rows, bytes->data);
}

}  // namespace

ExecutorMemory::ExecutorMemory(PhasedAllocator& allocator, const Layout& layout,
                               const Schedule& train, const Schedule& eval, const Model& model,
                               const ExecutorOptions& options, DeviceType kernels)
    : storage(layout, train, options.averages, options.change_storage),
      spilled(layout, options.spill_part),
      in_use(layout.flat_parameters.size()),
      buffers(model) {
  FSDP_CHECK_EQ(allocator.caching() != nullptr, options.buffers == FsdpOptions::Buffers::kCaching);
  allocator.Begin(Phase::kPersistent);
  const bool pieces = options.activation_offload == ActivationOffload::kSpill;
  units = MakeUnitMemory(allocator, layout, storage, train, eval,
                         pieces ? options.spill_part * SizeOf(DType::kFloat32) : 0);
  for (std::vector<View>& bytes : bytes_) bytes.resize(layout.units.size());
  for (int i = 0; i < train.update_slots; ++i) {
    update_slots_.push_back(NewBytes(allocator, storage.LargestBytes(Resource::kUpdated),
                                     {MemoryKind::kActivations, MemoryPlace::kPinned}));
  }
  const ScheduleOptions& scheduled = train.options;
  if (options.mixed_precision.ScalesLoss()) {
    divisor = static_cast<float>(RanksToScaleBy(scheduled.shards * scheduled.replicas));
  }
  TakeShards(allocator, layout);
  TakeStep(allocator, model, options, kernels);
  if (scheduled.Any(&UnitRow::on_host)) {
    host_coefficient =
        NewPersistent(allocator, divisor > 1 ? 2 : 1,
                      {MemoryKind::kActivations, MemoryPlace::kPinned}, DType::kFloat32);
  }
  for (int f = 0; f < static_cast<int>(divided.size()); ++f) {
    const int here = divided[f] ? kDividedCoefficient : kCoefficient;
    const int there = divided[f] ? 1 : 0;
    const bool on_device = storage.UpdatePlace(f) == MemoryPlace::kDevice;
    coefficients.push_back(on_device               ? scalars.Slice(here, 1)
                           : host_coefficient.data ? host_coefficient.Slice(there, 1)
                                                   : View());
  }
}

// All of the run's memory that the table has, but for what Executor::NewShards() makes.
void ExecutorMemory::TakeShards(PhasedAllocator& allocator, const Layout& layout) {
  constexpr std::pair<Resource, MemoryKind> kTaken[] = {
      {Resource::kMaster, MemoryKind::kParameters},
      {Resource::kComputeShard, MemoryKind::kParameters},
      {Resource::kGradientShard, MemoryKind::kGradients},
      {Resource::kAverageInUse, MemoryKind::kParameters},
      {Resource::kSecondary, MemoryKind::kSecondary}};
  const int flats = static_cast<int>(layout.flat_parameters.size());
  for (const auto& [what, kind] : kTaken) {
    for (int f = 0; f < flats; ++f) {
      const StorageRow& row = storage.Declared(what, f);
      const bool own = row.home == Home::kRun || row.home == Home::kStep;
      shards_[static_cast<int>(what)].push_back(
          NewPersistent(allocator, own ? row.elements : 0, {kind, row.place}, row.form.dtype));
    }
  }
  for (int f = 0; f < flats; ++f) {
    divided.push_back(divisor > 1 && layout.shards == 1 &&
                      layout.flat_parameters[f].dtypes.grad == DType::kFloat16);
    if (!storage.Has(Resource::kState, f)) continue;
    if (storage.PlaceOf(Resource::kState, f) != MemoryPlace::kDisk) continue;
    const StorageRow& updated = storage.Declared(Resource::kUpdated, f);
    spilled.Spill(f,
                  updated.home == Home::kSlot ? std::optional(updated.form.dtype) : std::nullopt);
    if (storage.PlaceOf(Resource::kMaster, f) == MemoryPlace::kDisk) {
      spilled.Add(f, Shard(Resource::kMaster, f), /*state=*/false);
    }
  }
}

// All else that a step works with.
void ExecutorMemory::TakeStep(PhasedAllocator& allocator, const Model& model,
                              const ExecutorOptions& options, DeviceType kernels) {
  const MemoryUse pinned{MemoryKind::kActivations, MemoryPlace::kPinned};
  const auto persistent = [&](int64_t elements, MemoryUse use) {
    return NewPersistent(allocator, elements, use, DType::kFloat32);
  };
  const BatchSpec spec = model.Inputs(options.sample_length);
  for (StagedBatch& batch : batches) {
    const int64_t rows = options.micro_batch_size;
    batch.device = NewBatch(allocator, spec, rows, MemoryPlace::kDevice, &batch.device_bytes);
    batch.host = NewBatch(allocator, spec, rows, MemoryPlace::kPinned, &batch.host_bytes);
  }
  int64_t largest_shard = 0;
  for (const View& master : shards_[static_cast<int>(Resource::kMaster)]) {
    largest_shard = std::max(largest_shard, master.NumElements());
  }
  upload = persistent(std::min(largest_shard, kUploadElements), pinned);
  scalars = buffers.Place(allocator, kNumScalars);
  for (View& report : reports) report = persistent(buffers.tallies() + kNumScalars, pinned);
  inputs = NewBytes(allocator, sizeof(StepInputs), MemoryKind::kActivations);
  for (View& input : staged_inputs) input = NewBytes(allocator, sizeof(StepInputs), pinned);
  if (options.mixed_precision.ScalesLoss()) {
    scaler = persistent(kLossScalerFloats, MemoryKind::kActivations);
  }
  squares = NewBytes(allocator, SumOfSquaresWorkspaceBytes(kernels), MemoryKind::kActivations);
  if (kernels == DeviceType::kCuda) {
    constexpr int64_t kAlignment = 256;
    products.workspace =
        NewBytes(allocator, kGemmWorkspaceBytes + kAlignment, MemoryKind::kActivations).data;
    products.workspace += kAlignment - reinterpret_cast<uintptr_t>(products.workspace) % kAlignment;
  }
}

const View& ExecutorMemory::Shard(Resource what, int flat) const {
  const StorageRow& row = storage.Declared(what, flat);
  return row.home == Home::kSame ? Shard(row.same, flat) : shards_[static_cast<int>(what)][flat];
}

PlacedView ExecutorMemory::At(const Use& use, int flat) const {
  const StorageRow& row = storage.Declared(use.what, flat);
  PlacedView found{View(), row.place, row.form.code};
  const auto carve = [&](const View& bytes) {
    if (bytes.data == nullptr) return;
    found.view = {bytes.data + row.offset, row.form.dtype, Shape{row.elements}};
  };
  switch (row.home) {
    case Home::kNone:
      break;
    case Home::kSame:  // Where nothing is gathered, the step says what it computes with.
      if (use.what != Resource::kValue) return At({row.same, use.of}, flat);
      found.view = in_use[flat];
      break;
    case Home::kUnit:
      carve(bytes_[static_cast<int>(use.what)][use.of]);
      break;
    case Home::kSlot:
      carve(update_slots_[use.slot]);
      break;
    case Home::kRun:
    case Home::kStep:
      found.view = Shard(use.what, flat);
      break;
  }
  return found;
}

void ExecutorMemory::Take(const Action& action, Mode mode, size_t index) {
  for (const Use& use : action.takes) {
    const int64_t bytes = storage.BytesOf(use.what, action.unit);
    Bytes(use) = units->Take(use, bytes, mode, index, action.stream);
  }
}

void ExecutorMemory::Give(const Action& action) {
  for (const Use& use : action.gives) {
    units->Give(Bytes(use), action.stream);
    Bytes(use) = View();
  }
}

}  // namespace fsdp
