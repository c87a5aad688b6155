// Where offload puts the shards of a unit, and what it takes to bring them to the device.
// Tests: tests/trainer/engine/bitwise_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_OFFLOAD_H_
#define FSDP_TRAIN_TRAINER_FSDP_OFFLOAD_H_

#include <cstdint>
#include <set>
#include <vector>

#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/runtime/memory.h"

namespace fsdp {

// Of a flat parameter.
struct ShardMemory {
  // Where it is updated, and its gradient lies: kDevice, or kPinned where the host does it.
  MemoryPlace update = MemoryPlace::kDevice;
  // There, or kDisk.
  MemoryPlace master = MemoryPlace::kDevice;
  MemoryPlace state = MemoryPlace::kDevice;  // Of the optimizer; and the average's.
  MemoryPlace copy = MemoryPlace::kDevice;   // Of what is gathered or, with F = 1, computed with.
  bool shared = false;                       // Master and copy are one memory.
};

// Whether a step has work on the streams kLeave, kUpdate and kFetch.
bool Offloads(const ScheduleOptions& train);

// Of the stream kUpdate: those that update on the host; 1 where nothing is updated there.
int UpdateThreads(const ScheduleOptions& train, int compute_threads);

// By flat parameter. `train`: of a training step.
std::vector<ShardMemory> PlacesOf(const Layout& layout, const ScheduleOptions& train);

// The most bytes that the gradient shards of a unit of `units` take, in fp32.
int64_t LargestGradientShards(const Layout& layout, const std::set<int>& units);

// Of what an update on the host leaves for the device in another dtype than the masters': likewise.
int64_t LargestCopies(const Layout& layout, const ScheduleOptions& train);

// Of what is cast behind its way from the host: at most so many elements at a time.
inline constexpr int64_t kFetchElements = int64_t{1} << 20;  // 4 MiB.

// Elements, fp32 or less, of the device's memory in which what comes from the host is cast, piece
// by piece; 0: nothing is. `averages`: such are evaluated, in fp32.
int64_t FetchElements(const Layout& layout, const ScheduleOptions& train, bool averages);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_OFFLOAD_H_
