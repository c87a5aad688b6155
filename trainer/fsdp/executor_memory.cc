#include "trainer/fsdp/executor_memory.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/fsdp/loss_scale.h"
#include "trainer/fsdp/offload.h"
#include "trainer/ops/reductions.h"
#include "trainer/ops/step_parameters.h"

namespace fsdp {
namespace {

// Initial values go to the device in pieces of 4 MiB.
constexpr int64_t kUploadElements = int64_t{1} << 20;

View NewBytes(PhasedAllocator& allocator, int64_t bytes, MemoryUse use) {
  return NewPersistent(allocator, bytes, use, DType::kUInt8);
}

Batch NewBatch(PhasedAllocator& allocator, const BatchSpec& spec, int64_t rows, MemoryPlace place,
               View* bytes) {
  *bytes = NewBytes(allocator, BatchBytes(spec, rows), {MemoryKind::kActivations, place});
  return CarveBatch(spec, rows, bytes->data);
}

}  // namespace

View NewPersistent(PhasedAllocator& allocator, int64_t elements, MemoryUse use, DType dtype) {
  View view(nullptr, dtype, Shape{elements});
  if (elements > 0) view.data = allocator.Allocate(view.bytes(), use);
  return view;
}

ExecutorMemory::ExecutorMemory(PhasedAllocator& allocator, const Layout& layout,
                               const Schedule& train, const Schedule& eval, const Model& model,
                               const ExecutorOptions& options, DeviceType kernels)
    : caching(allocator.caching()),
      gather_places{PlacesOfGathers(train, layout), PlacesOfGathers(eval, layout)},
      gradient_places(PlacesOfGradients(train, layout)),
      spilled(layout, options.spill_part),
      units(layout.units.size()),
      buffers(model) {
  FSDP_CHECK_EQ(caching != nullptr, options.buffers == FsdpOptions::Buffers::kCaching);
  const auto persistent = [&](int64_t elements, MemoryUse use, DType dtype) {
    return NewPersistent(allocator, elements, use, dtype);
  };
  const auto bytes = [&](int64_t n, MemoryUse use) { return NewBytes(allocator, n, use); };
  const MemoryUse pinned{MemoryKind::kActivations, MemoryPlace::kPinned};
  allocator.Begin(Phase::kPersistent);
  gather_slots =
      bytes(std::max(gather_places[0].bytes, gather_places[1].bytes), MemoryKind::kUnsharded);
  gradient_slots = bytes(gradient_places.bytes, MemoryKind::kUnsharded);
  const ScheduleOptions& scheduled = train.options;
  for (int i = 0; i < train.shard_slots; ++i) {
    shard_slots.push_back(
        bytes(LargestGradientShards(layout, scheduled.host_units), MemoryKind::kUnsharded));
  }
  for (int i = 0; i < train.update_slots; ++i) {
    update_slots.push_back(bytes(LargestCopies(layout, scheduled), pinned));
  }
  places = PlacesOf(layout, scheduled);
  if (options.mixed_precision.ScalesLoss()) {
    divisor = static_cast<float>(RanksToScaleBy(scheduled.shards * scheduled.replicas));
  }
  int64_t largest_shard = 0;
  for (size_t f = 0; f < places.size(); ++f) {
    const FlatParameter& flat = layout.flat_parameters[f];
    const DTypes& d = flat.dtypes;
    const ShardMemory& at = places[f];
    masters.push_back(persistent(flat.shard_size, {MemoryKind::kParameters, at.master}, d.master));
    if (at.state == MemoryPlace::kDisk) {
      const bool cast_there =
          options.mixed_precision.cast == FsdpOptions::MixedPrecision::CastIn::kGather;
      const bool copied = at.copy == MemoryPlace::kDevice && !cast_there && d.compute != d.master;
      spilled.Spill(static_cast<int>(f), copied ? std::optional(d.compute) : std::nullopt);
    }
    if (at.master == MemoryPlace::kDisk) spilled.Add(static_cast<int>(f), masters.back());
    compute_shards.push_back(
        at.shared ? masters.back()
                  : persistent(flat.shard_size, {MemoryKind::kParameters, at.copy}, d.compute));
    gradients.push_back(persistent(flat.frozen ? 0 : flat.shard_size,
                                   {MemoryKind::kGradients, at.update},
                                   layout.shards > 1 ? DType::kFloat32 : d.grad));
    divided.push_back(divisor > 1 && layout.shards == 1 && d.grad == DType::kFloat16);
    const bool in_masters = layout.shards == 1 && at.shared && at.update == MemoryPlace::kDevice;
    const bool apart = options.averages && in_masters && d.master != DType::kFloat32;
    averages.push_back(persistent(apart && !flat.frozen ? flat.shard_size : 0,
                                  MemoryKind::kParameters, d.compute));
    largest_shard = std::max(largest_shard, flat.shard_size);
  }
  secondary.resize(layout.flat_parameters.size());
  for (const Action& action : train.actions) {
    if (action.kind != ActionKind::kKeep || action.micro_batch > 0) continue;
    for (const int f : layout.units[action.unit].flat_parameters) {
      const FlatParameter& flat = layout.flat_parameters[f];
      secondary[f] = persistent(flat.size / train.options.secondary, MemoryKind::kSecondary,
                                flat.dtypes.compute);
    }
  }
  std::set<int> staged_units;
  for (int u = 0; u < static_cast<int>(units.size()) && !caching; ++u) {
    const bool sharded = layout.shards > 1;
    if ((sharded || scheduled.fetched_units.count(u) > 0) && (u == 0 || train.gather_slots == 0)) {
      units[u].value = bytes(layout.GatheredBytes(u), MemoryKind::kUnsharded);
    }
    if ((sharded || scheduled.host_units.count(u) > 0) && (u == 0 || train.gradient_slots == 0)) {
      units[u].gradient = bytes(layout.GradientBytes(u), MemoryKind::kUnsharded);
    }
    staged_units.insert(u);
  }
  const auto staged = [](const Action& action) { return action.staged; };
  if (!caching && std::any_of(train.actions.begin(), train.actions.end(), staged)) {
    staging = bytes(LargestGradientShards(layout, staged_units), MemoryKind::kUnsharded);
  }
  const auto wire_for = [&](ActionKind kind, int64_t FlatParameter::*elements, const auto& from) {
    int64_t most = 0;
    for (const Action& action : train.actions) {
      if (action.kind != kind || caching) continue;
      for (const int f : layout.TrainableFlatParameters(action.unit)) {
        const FlatParameter& flat = layout.flat_parameters[f];
        const DType reduce = flat.dtypes.reduce;
        if (reduce != from(flat)) most = std::max(most, flat.*elements * SizeOf(reduce));
      }
    }
    return most > 0 ? bytes(most, MemoryKind::kUnsharded) : View();
  };
  wire = wire_for(ActionKind::kReduce, &FlatParameter::size,
                  [](const FlatParameter& flat) { return flat.dtypes.grad; });
  replica_wire = wire_for(ActionKind::kAllReduce, &FlatParameter::shard_size,
                          [](const FlatParameter&) { return DType::kFloat32; });
  const BatchSpec spec = model.Inputs(options.sample_length);
  for (StagedBatch& batch : batches) {
    const int64_t rows = options.micro_batch_size;
    batch.device = NewBatch(allocator, spec, rows, MemoryPlace::kDevice, &batch.device_bytes);
    batch.host = NewBatch(allocator, spec, rows, MemoryPlace::kPinned, &batch.host_bytes);
  }
  upload = persistent(std::min(largest_shard, kUploadElements), pinned, DType::kFloat32);
  scalars = buffers.Place(allocator, kNumScalars);
  for (View& report : reports) report = persistent(kNumScalars, pinned, DType::kFloat32);
  inputs = bytes(sizeof(StepInputs), MemoryKind::kActivations);
  for (View& input : staged_inputs) input = bytes(sizeof(StepInputs), pinned);
  if (options.activation_offload == ActivationOffload::kSpill) {
    const int64_t piece = options.spill_part * SizeOf(DType::kFloat32);
    for (View* const staging : {&leaving, &coming}) {
      *staging = bytes(piece + kSpillAlignment, pinned);
      const auto address = reinterpret_cast<uintptr_t>(staging->data);
      *staging = staging->Slice(kSpillAlignment - address % kSpillAlignment, piece);
    }
  }
  const int coefficients = divisor > 1 ? 2 : 1;
  if (!scheduled.host_units.empty()) {
    host_coefficient = persistent(coefficients, pinned, DType::kFloat32);
  }
  if (!caching) {
    fetch = persistent(FetchElements(layout, scheduled, options.averages), MemoryKind::kUnsharded,
                       DType::kFloat32);
  }
  if (options.mixed_precision.ScalesLoss()) {
    scaler = persistent(kLossScalerFloats, MemoryKind::kActivations, DType::kFloat32);
  }
  squares = bytes(SumOfSquaresWorkspaceBytes(kernels), MemoryKind::kActivations);
  if (kernels == DeviceType::kCuda) {
    constexpr int64_t kAlignment = 256;
    gemm_workspace = bytes(kGemmWorkspaceBytes + kAlignment, MemoryKind::kActivations);
    gemm_workspace.data +=
        kAlignment - reinterpret_cast<uintptr_t>(gemm_workspace.data) % kAlignment;
    gemm_workspace.shape = Shape{kGemmWorkspaceBytes};
  }
}

void ExecutorMemory::PlaceSlots(Mode mode, const Schedule& schedule, const Layout& layout) {
  SlotPlaces& gathers = gather_places[static_cast<int>(mode)];
  gathers = PlacesOfGathers(schedule, layout);
  FSDP_CHECK_LE(gathers.bytes, gather_slots.bytes());
  if (mode == Mode::kEval) return;
  gradient_places = PlacesOfGradients(schedule, layout);
  FSDP_CHECK_LE(gradient_places.bytes, gradient_slots.bytes());
}

std::byte* ExecutorMemory::GatheredAt(const Action& action, Mode mode, size_t index) const {
  if (action.slot < 0) return units[action.unit].value.data;
  return gather_slots.data + gather_places[static_cast<int>(mode)].offsets[index];
}

std::byte* ExecutorMemory::GradientAt(const Action& action, size_t index) const {
  if (action.slot < 0) return units[action.unit].gradient.data;
  return gradient_slots.data + gradient_places.offsets[index];
}

}  // namespace fsdp
