#include "trainer/fsdp/unit_memory.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "trainer/core/check.h"
#include "trainer/fsdp/caching_buffers.h"
#include "trainer/fsdp/slot_places.h"

namespace fsdp {
namespace {

// Pinned, beginning where a disk's blocks may.
View NewPiece(PhasedAllocator& allocator, int64_t bytes) {
  if (bytes == 0) return NewBytes(allocator, 0, MemoryKind::kActivations);
  const View all = NewBytes(allocator, bytes + kSpillAlignment,
                            {MemoryKind::kActivations, MemoryPlace::kPinned});
  const auto address = reinterpret_cast<uintptr_t>(all.data);
  return all.Slice(kSpillAlignment - address % kSpillAlignment, bytes);
}

class PlannedUnits final : public UnitMemory {
 public:
  PlannedUnits(PhasedAllocator& allocator, const Layout& layout, const Storage& storage,
               const Schedule& train, const Schedule& eval, int64_t pieces)
      : layout_(layout),
        gathers_{PlacesOfGathers(train, layout), PlacesOfGathers(eval, layout)},
        gradients_(PlacesOfGradients(train, layout)) {
    const auto bytes = [&](int64_t n) { return NewBytes(allocator, n, MemoryKind::kUnsharded); };
    gather_slots_ = bytes(std::max(gathers_[0].bytes, gathers_[1].bytes));
    gradient_slots_ = bytes(gradients_.bytes);
    for (int i = 0; i < train.shard_slots; ++i) {
      shard_slots_.push_back(bytes(storage.LargestBytes(Resource::kShard)));
    }
    for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
      const auto own = [&](Resource what, int slots) {
        return bytes(u == 0 || slots == 0 ? storage.BytesOf(what, u) : 0);
      };
      values_.push_back(own(Resource::kValue, train.gather_slots));
      own_gradients_.push_back(own(Resource::kGradient, train.gradient_slots));
    }
    const auto stages = [](const Action& action) { return action.kind == ActionKind::kAccumulate; };
    if (std::ranges::any_of(train.actions, stages)) {
      staging_ = bytes(storage.LargestBytes(Resource::kStaging));
    }
    constexpr std::tuple<Scratch, Resource, ActionKind> kWires[] = {
        {Scratch::kGatherWire, Resource::kGatherWire, ActionKind::kGather},
        {Scratch::kWire, Resource::kWire, ActionKind::kReduce},
        {Scratch::kArrived, Resource::kArrived, ActionKind::kReduce},
        {Scratch::kInsideSum, Resource::kInsideSum, ActionKind::kReduce},
        {Scratch::kReplicaWire, Resource::kReplicaWire, ActionKind::kAllReduce},
        {Scratch::kReplicaArrived, Resource::kReplicaArrived, ActionKind::kAllReduce}};
    for (const auto& [scratch, wire, kind] : kWires) {
      int64_t most = 0;  // As much as the largest that travels in another form than it lies in.
      for (const Action& action : train.actions) {
        if (action.kind == kind) most = std::max(most, storage.LargestRow(wire, action.unit));
      }
      scratch_[static_cast<int>(scratch)] = bytes(most);
    }
    scratch_[static_cast<int>(Scratch::kFetch)] =
        bytes(storage.FetchElements() * SizeOf(DType::kFloat32));
    for (const Scratch piece : {Scratch::kLeaving, Scratch::kComing}) {
      scratch_[static_cast<int>(piece)] = NewPiece(allocator, pieces);
    }
  }

  View Take(const Use& use, int64_t bytes, Mode mode, size_t index, StreamId) override {
    const auto in = [&](const View& slots, int64_t offset) { return slots.Slice(offset, bytes); };
    switch (use.what) {
      case Resource::kValue:
        return use.slot < 0 ? values_[use.of]
                            : in(gather_slots_, gathers_[static_cast<int>(mode)].offsets[index]);
      case Resource::kGradient:
        return use.slot < 0 ? own_gradients_[use.of]
                            : in(gradient_slots_, gradients_.offsets[index]);
      case Resource::kShard:
        return in(shard_slots_[use.slot], 0);
      default:
        FSDP_CHECK(use.what == Resource::kStaging) << static_cast<int>(use.what);
        return in(staging_, 0);
    }
  }
  void Give(const View&, StreamId) override {}
  View Borrow(Scratch what, int64_t, StreamId) override { return scratch_[static_cast<int>(what)]; }
  void Return(Scratch, const View&) override {}

  void Replace(Mode mode, const Schedule& schedule) override {
    SlotPlaces& gathers = gathers_[static_cast<int>(mode)];
    gathers = PlacesOfGathers(schedule, layout_);
    FSDP_CHECK_LE(gathers.bytes, gather_slots_.bytes());
    if (mode == Mode::kEval) return;
    gradients_ = PlacesOfGradients(schedule, layout_);
    FSDP_CHECK_LE(gradients_.bytes, gradient_slots_.bytes());
  }

 private:
  const Layout& layout_;
  SlotPlaces gathers_[2], gradients_;  // Gathers by Mode.
  View gather_slots_, gradient_slots_, staging_;
  std::vector<View> shard_slots_;
  std::vector<View> values_, own_gradients_;  // By unit: of those that use no slots.
  std::array<View, kNumScratch> scratch_;
};

class CachingUnits final : public UnitMemory {
 public:
  CachingUnits(CachingBuffers& buffers, PhasedAllocator& allocator, int64_t pieces)
      : buffers_(buffers),
        leaving_(NewPiece(allocator, pieces)),
        coming_(NewPiece(allocator, pieces)) {}

  View Take(const Use&, int64_t bytes, Mode, size_t, StreamId stream) override {
    return buffers_.Take(bytes, stream);
  }
  void Give(const View& bytes, StreamId user) override { buffers_.Release(bytes, {user}); }
  View Borrow(Scratch what, int64_t bytes, StreamId stream) override {
    if (what == Scratch::kLeaving) return leaving_;
    return what == Scratch::kComing ? coming_ : buffers_.Take(bytes, stream);
  }
  void Return(Scratch what, const View& bytes) override {
    if (what != Scratch::kLeaving && what != Scratch::kComing) buffers_.Release(bytes);
  }
  void Replace(Mode, const Schedule&) override {}

 private:
  CachingBuffers& buffers_;
  const View leaving_, coming_;
};

}  // namespace

View NewPersistent(PhasedAllocator& allocator, int64_t elements, MemoryUse use, DType dtype) {
  View view(nullptr, dtype, Shape{elements});
  if (elements > 0) view.data = allocator.Allocate(view.bytes(), use);
  return view;
}

View NewBytes(PhasedAllocator& allocator, int64_t bytes, MemoryUse use) {
  return NewPersistent(allocator, bytes, use, DType::kUInt8);
}

std::unique_ptr<UnitMemory> MakeUnitMemory(PhasedAllocator& allocator, const Layout& layout,
                                           const Storage& storage, const Schedule& train,
                                           const Schedule& eval, int64_t pieces) {
  if (CachingBuffers* const buffers = allocator.caching()) {
    return std::make_unique<CachingUnits>(*buffers, allocator, pieces);
  }
  return std::make_unique<PlannedUnits>(allocator, layout, storage, train, eval, pieces);
}

}  // namespace fsdp
