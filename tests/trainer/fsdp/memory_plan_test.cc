#include "trainer/fsdp/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

TEST(PackBlocks, BlocksAliveTogetherDoNotOverlap) {
  const RandomStream random(1, "pack");
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<Lifetime> blocks;
    int64_t most = 0;
    for (int i = 0; i < 60; ++i) {
      const uint64_t at = trial * 1000 + i * 3;
      const auto born = static_cast<int64_t>(random.Below(at, 100));
      blocks.push_back({1 + static_cast<int64_t>(random.Below(at + 1, 5000)), born,
                        born + 1 + static_cast<int64_t>(random.Below(at + 2, 30))});
    }
    std::vector<int64_t> offsets;
    const int64_t top = PackBlocks(blocks, offsets);
    int64_t sum = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(offsets[i] % 64, 0);
      EXPECT_LE(offsets[i] + blocks[i].bytes, top);
      sum += (blocks[i].bytes + 63) / 64 * 64;
      for (size_t j = 0; j < i; ++j) {
        const bool together = blocks[i].born < blocks[j].died && blocks[j].born < blocks[i].died;
        const bool overlap =
            offsets[i] < offsets[j] + blocks[j].bytes && offsets[j] < offsets[i] + blocks[i].bytes;
        EXPECT_FALSE(together && overlap) << i << " and " << j;
      }
    }
    for (int64_t t = 0; t < 130; ++t) {  // No packing can beat the bytes alive at one time.
      int64_t alive = 0;
      for (const Lifetime& b : blocks) alive += b.born <= t && t < b.died ? b.bytes : 0;
      most = std::max(most, alive);
    }
    EXPECT_LE(most, top);
    EXPECT_LE(top, std::min(sum, 2 * most));  // Nor is it far from that here.
  }
}

// As it says: large ones first, each at the lowest place. Layers that keep something each, and work
// in something besides, come to many blocks.
TEST(PackBlocks, EachBlockLiesAsLowAsItCan) {
  const RandomStream random(2, "pack");
  constexpr int64_t kLayers = 600;
  std::vector<Lifetime> blocks;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    blocks.push_back({512, 10 * layer, 20 * kLayers - 10 * layer});  // Kept for backward.
    for (int64_t i = 0; i < 6; ++i) {
      const uint64_t at = layer * 100 + i * 3;
      const auto born = 10 * layer + static_cast<int64_t>(random.Below(at, 8));
      blocks.push_back({64 * (1 + static_cast<int64_t>(random.Below(at + 1, 40))), born,
                        born + 1 + static_cast<int64_t>(random.Below(at + 2, 4))});
    }
  }
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  std::vector<int64_t> offsets;
  const int64_t top = PackBlocks(blocks, offsets);
  int64_t highest = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    const Lifetime& block = blocks[order[k]];
    std::vector<std::pair<int64_t, int64_t>> taken;  // From here to there, by larger ones.
    for (size_t l = 0; l < k; ++l) {
      const Lifetime& other = blocks[order[l]];
      if (block.born >= other.died || other.born >= block.died) continue;
      taken.emplace_back(offsets[order[l]], offsets[order[l]] + other.bytes);
    }
    std::sort(taken.begin(), taken.end());
    int64_t lowest = 0;
    for (const auto& [from, to] : taken) {
      if (from >= lowest + block.bytes) break;
      lowest = std::max(lowest, to);
    }
    ASSERT_EQ(offsets[order[k]], lowest) << "block " << order[k];
    highest = std::max(highest, lowest + block.bytes);
  }
  EXPECT_EQ(top, highest);
}

// Between two that are alive.
TEST(PackBlocks, TheRoomOfABlockThatHasDiedIsTaken) {
  std::vector<int64_t> offsets;
  PackBlocks({{2048, 0, 100}, {1024, 0, 10}, {512, 0, 100}, {64, 50, 60}}, offsets);
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 2048, 3072, 2048}));
}

// Not four times as many, for four times as many layers.
TEST(PackBlocks, LooksAtAsManyForEachOfManyLayers) {
  const auto looks_at_each = [](int64_t layers) {
    std::vector<Lifetime> blocks;
    const int64_t end = 40 * layers;
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (const int64_t bytes : {4096, 1024, 256, 128, 64, 64}) {
        const int64_t born = 20 * layer + static_cast<int64_t>(blocks.size() % 6);
        blocks.push_back({bytes, born, end - born});  // Kept for backward.
        for (const int64_t other : {bytes, int64_t{2304}, int64_t{128}}) {
          blocks.push_back({other, born + 1, born + 6});  // Forward's, and backward's.
          blocks.push_back({other, end - born - 6, end - born - 1});
        }
      }
    }
    std::vector<int64_t> offsets;
    int64_t looks = 0;
    PackBlocks(blocks, offsets, 64, &looks);
    return static_cast<double>(looks) / static_cast<double>(blocks.size());
  };
  EXPECT_LE(looks_at_each(600), 2 * looks_at_each(150));
}

// Memory in use at a time is the least that any plan takes; a disk has no ceiling.
TEST(PlanRecorder, EndsAboveTheCeiling) {
  const MemoryUse pinned = {MemoryKind::kActivations, MemoryPlace::kPinned};
  const MemoryUse disk = {MemoryKind::kOptimizer, MemoryPlace::kDisk};
  PlanRecorder device({.device = 1024}), host({.host = 1024}), all({.all = 1024});
  for (PlanRecorder* recorder : {&device, &host, &all}) recorder->Allocate(1 << 20, disk);
  std::byte* const first = device.Allocate(600, MemoryKind::kActivations);  // 640 with its end.
  device.Allocate(2048, pinned);
  EXPECT_THROW(device.Allocate(400, MemoryKind::kActivations), MemoryError);
  PlanRecorder again({.device = 1024});
  again.Free(again.Allocate(600, MemoryKind::kActivations), 600, MemoryKind::kActivations);
  EXPECT_NO_THROW(again.Allocate(1024, MemoryKind::kActivations));
  device.Free(first, 600, MemoryKind::kActivations);
  host.Allocate(2048, MemoryKind::kActivations);
  host.Allocate(1024, pinned);
  EXPECT_THROW(host.Allocate(1, pinned), MemoryError);
  all.Allocate(512, MemoryKind::kActivations);
  all.Allocate(512, pinned);
  EXPECT_THROW(all.Allocate(1, MemoryKind::kActivations), MemoryError);
}

// Two tensors that live one after the other, inside one that spans them.
void AllocateAStep(PhasedAllocator& allocator, Phase phase) {
  allocator.Begin(phase);
  Tensor outer(allocator, DType::kFloat32, Shape{100});
  { Tensor a(allocator, DType::kFloat32, Shape{1000}); }
  { Tensor b(allocator, DType::kFloat32, Shape{500}); }
}

TEST(MemoryPlan, TheRealRunGetsWhatWasPlanned) {
  PlanRecorder recorder;
  recorder.Begin(Phase::kPersistent);
  auto shard =
      std::make_unique<Tensor>(recorder, DType::kFloat32, Shape{10}, MemoryKind::kParameters);
  AllocateAStep(recorder, Phase::kTrain);
  AllocateAStep(recorder, Phase::kTrain);  // A second micro-batch asks for the same.
  AllocateAStep(recorder, Phase::kEval);
  const MemoryPlan plan = recorder.Finish();
  EXPECT_EQ(plan.blocks[0].size(), 1u);
  EXPECT_EQ(plan.blocks[1].size(), 3u);
  // 64 persistent, then 4032 (b shares a's place) + 448, used by both phases.
  EXPECT_EQ(plan.bytes(), 64 + 4032 + 448);
  EXPECT_EQ(plan.bytes(MemoryKind::kParameters), 64);
  EXPECT_EQ(plan.bytes(MemoryKind::kActivations), 4032 + 448);

  SimDevice device;
  {
    PlannedAllocator allocator(device, plan);
    EXPECT_EQ(device.allocated_bytes(), plan.bytes());
    allocator.Begin(Phase::kPersistent);
    const Tensor real(allocator, DType::kFloat32, Shape{10}, MemoryKind::kParameters);
    for (int step = 0; step < 3; ++step) {
      allocator.Begin(Phase::kTrain);
      const Tensor outer(allocator, DType::kFloat32, Shape{100});
      const Tensor a(allocator, DType::kFloat32, Shape{1000});
      const Tensor b(allocator, DType::kFloat32, Shape{500});
      EXPECT_EQ(a.view().data, b.view().data);
      EXPECT_NE(a.view().data, outer.view().data);
    }
  }
  EXPECT_EQ(device.allocated_bytes(), 0);
}

// All of it together, where micro-batches have theirs, whichever is larger; persistent memory, also
// what is taken later, lies apart.
TEST(MemoryPlan, UpdatesLieWhereMicroBatchesDo) {
  const MemoryUse pinned = {MemoryKind::kActivations, MemoryPlace::kPinned};
  for (const int64_t elements : {100, 1000}) {
    std::vector<Range> persistent, updates;
    const auto take = [&](PhasedAllocator& allocator) {
      persistent.clear(), updates.clear();
      const int64_t bytes = 4 * elements;
      allocator.Begin(Phase::kPersistent);
      persistent.push_back({allocator.Allocate(40, MemoryKind::kParameters), 40});
      updates.push_back({allocator.AllocateForUpdates(bytes, MemoryKind::kActivations), bytes});
      persistent.push_back({allocator.Allocate(400, MemoryKind::kSnapshot), 400});
      updates.push_back({allocator.AllocateForUpdates(bytes, MemoryKind::kActivations), bytes});
      allocator.AllocateForUpdates(40, pinned);
    };
    // Just enough for what there is at a time.
    const int64_t updated = 2 * ((4 * elements + 63) / 64 * 64), step = 4032 + 448;
    const int64_t device = 64 + 448 + std::max(updated, step);
    PlanRecorder recorder({.device = device}), small({.device = device - 1});
    const auto record = [&](PlanRecorder& of) {
      take(of);
      AllocateAStep(of, Phase::kTrain);
    };
    record(recorder);
    EXPECT_THROW(record(small), MemoryError) << elements;
    const MemoryPlan plan = recorder.Finish();
    EXPECT_EQ(plan.bytes(MemoryPlace::kDevice), device);
    EXPECT_EQ(plan.bytes(MemoryKind::kActivations, MemoryPlace::kDevice), std::max(updated, step));
    EXPECT_EQ(plan.bytes(MemoryPlace::kPinned), 64);
    SimDevice sim;
    PlannedAllocator allocator(sim, plan);
    take(allocator);
    EXPECT_GE(updates[1].begin, updates[0].begin + updates[0].bytes);
    for (const Range& block : persistent) EXPECT_LE(block.begin + block.bytes, updates[0].begin);
    allocator.Begin(Phase::kTrain);
    const Tensor outer(allocator, DType::kFloat32, Shape{100});
    const Tensor a(allocator, DType::kFloat32, Shape{1000});
    EXPECT_EQ(Range(a.view()).begin, updates[0].begin);  // The largest lies lowest.
  }
}

// Memory that the host shares with the device lies apart from memory that it must not touch.
TEST(MemoryPlan, EachPlaceHasAnArenaOfItsOwn) {
  const auto step = [](PhasedAllocator& allocator, std::vector<Range>* ranges) {
    allocator.Begin(Phase::kPersistent);
    for (const MemoryUse use : {MemoryUse(MemoryKind::kParameters),
                                {MemoryKind::kActivations, MemoryPlace::kPinned},
                                MemoryUse(MemoryKind::kOptimizer),
                                {MemoryKind::kSnapshot, MemoryPlace::kHost}}) {
      ranges->push_back({allocator.Allocate(100, use), 100});
    }
    allocator.Begin(Phase::kTrain);
    const Tensor device(allocator, DType::kFloat32, Shape{25});
    const Tensor pinned(allocator, DType::kFloat32, Shape{25},
                        {MemoryKind::kActivations, MemoryPlace::kPinned});
    for (const Tensor* t : {&device, &pinned}) ranges->push_back(t->view());
  };
  PlanRecorder recorder;
  std::vector<Range> ranges;
  step(recorder, &ranges);
  const MemoryPlan plan = recorder.Finish();
  EXPECT_EQ(plan.bytes(MemoryPlace::kDevice), 3 * 128);
  EXPECT_EQ(plan.bytes(MemoryPlace::kPinned), 2 * 128);
  EXPECT_EQ(plan.bytes(MemoryPlace::kHost), 128);
  EXPECT_EQ(plan.bytes(), 6 * 128);
  EXPECT_EQ(plan.bytes(MemoryKind::kActivations), 3 * 128);

  SimDevice device;
  PlannedAllocator allocator(device, plan);
  EXPECT_EQ(device.allocated_bytes(), 3 * 128);  // The device's own memory.
  ranges.clear();
  step(allocator, &ranges);
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_GE(
          std::max(ranges[i].begin, ranges[j].begin) - std::min(ranges[i].begin, ranges[j].begin),
          100u)
          << i << " and " << j;
    }
  }
}

TEST(MemoryPlanDeathTest, AnotherPlaceAborts) {
  PlanRecorder recorder;
  recorder.Begin(Phase::kTrain);
  { Tensor t(recorder, DType::kFloat32, Shape{5}); }
  SimDevice device;
  PlannedAllocator allocator(device, recorder.Finish());
  allocator.Begin(Phase::kTrain);
  EXPECT_DEATH(Tensor(allocator, DType::kFloat32, Shape{5},
                      {MemoryKind::kActivations, MemoryPlace::kPinned}),
               "another place");
}

TEST(MemoryPlanDeathTest, AnotherSizeAborts) {
  PlanRecorder recorder;
  AllocateAStep(recorder, Phase::kTrain);
  SimDevice device;
  PlannedAllocator allocator(device, recorder.Finish());
  allocator.Begin(Phase::kTrain);
  EXPECT_DEATH(Tensor(allocator, DType::kFloat32, Shape{101}), "404");
  allocator.Begin(Phase::kEval);
  EXPECT_DEATH(Tensor(allocator, DType::kFloat32, Shape{1}), "more than planned");
}

// Sizes that come to more than numbers hold would come out small, and blocks overlap.
TEST(MemoryPlan, WhatNoAddressReachesIsRefused) {
  PlanRecorder recorder;
  recorder.Allocate(int64_t{1} << 61, MemoryKind::kParameters);
  EXPECT_THROW(recorder.Allocate(int64_t{1} << 61, MemoryKind::kParameters), MemoryError);
}

// Passes of a phase that are not alike cannot be planned by one of them.
TEST(MemoryPlanDeathTest, AnotherPassOfAPhaseAsksForTheSame) {
  const auto passes = [](std::vector<int64_t> first, std::vector<int64_t> second) {
    PlanRecorder recorder;
    for (const std::vector<int64_t>& elements : {first, second, first}) {
      recorder.Begin(Phase::kTrain);
      for (const int64_t n : elements) Tensor(recorder, DType::kFloat32, Shape{n});
    }
  };
  passes({5, 7}, {5, 7});
  EXPECT_DEATH(passes({5, 7}, {5}), "allocated less than the first time");
  EXPECT_DEATH(passes({5, 7}, {5, 7, 9}), "allocates more than the first time");
  EXPECT_DEATH(passes({5, 7}, {5, 8}), "allocation 1");
  EXPECT_DEATH(
      {
        PlanRecorder recorder;
        recorder.Begin(Phase::kTrain);
        const Tensor kept(recorder, DType::kFloat32, Shape{5});
        recorder.Begin(Phase::kEval);
      },
      "1 blocks outlive their phase");
}

TEST(MemoryPlan, WhatDoesNotFitIsRefused) {
  PlanRecorder recorder;
  AllocateAStep(recorder, Phase::kTrain);
  SimModel model;
  model.capacity_bytes = 4000;
  SimDevice device(model);
  EXPECT_THROW(PlannedAllocator(device, recorder.Finish()), MemoryError);
}

}  // namespace
}  // namespace fsdp
