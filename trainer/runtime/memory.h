// What memory is for, and where it lies.
// Tests: tests/trainer/runtime/spill_memory_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_MEMORY_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace fsdp {

enum class MemoryKind {
  kParameters,   // Shards: master weights and compute copies.
  kGradients,    // Gradient shards, and full gradients where there is no shard.
  kOptimizer,    // State.
  kUnsharded,    // Gather and gradient slots: what exists only while a unit is in use.
  kSecondary,    // Parts of units that are kept from forward to backward.
  kActivations,  // What forward keeps for backward, and working memory of ops.
  kSnapshot,     // Copies that are written to disk while training goes on.
};
constexpr int kNumMemoryKinds = 7;

// Device memory is for kernels alone: the host must not follow its addresses, on no device. What
// goes between host and device is staged in one of the others. On a CPU the first three are the
// host's memory; on a GPU only copies to and from pinned memory run beside kernels. kDisk is
// nobody's memory: addresses of a spill file (spill_memory.h). Simulated devices alone give it out.
enum class MemoryPlace { kDevice, kPinned, kHost, kDisk };
constexpr int kNumMemoryPlaces = 4;

// What the beginnings of tensors on a disk are multiples of, in bytes: no disk's blocks are larger.
inline constexpr int64_t kSpillAlignment = 4096;

// The CPU device gives out its device memory under addresses with this bit set, which no process on
// x86-64 may touch: whoever forgets that they are a device's is ended by the processor at once.
inline constexpr uintptr_t kDeviceAddress = uintptr_t{1} << 62;

// Where the CPU may touch what lies at a device's address. Null stays null, and memory that no
// device gave out stays where it is.
template <typename Byte>
Byte* HostAddress(Byte* address) {
  return reinterpret_cast<Byte*>(reinterpret_cast<uintptr_t>(address) & ~kDeviceAddress);
}

struct MemoryUse {
  MemoryUse(MemoryKind k, MemoryPlace p = MemoryPlace::kDevice)  // NOLINT: a kind is a use.
      : kind(k), place(p) {}

  MemoryKind kind;
  MemoryPlace place;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_MEMORY_H_
