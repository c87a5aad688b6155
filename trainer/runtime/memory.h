// The purpose of memory, and where it lies.
// Tests: tests/trainer/runtime/spill_memory_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_MEMORY_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace fsdp {

enum class MemoryKind {
  kParameters,   // Shards: master weights and compute copies.
  kGradients,    // Gradient shards, and full gradients where there is no shard.
  kOptimizer,    // The optimizer's state.
  kUnsharded,    // Gather and gradient slots: what exists only while a unit is in use.
  kSecondary,    // Parts of units that are kept from forward to backward.
  kActivations,  // Kept from forward for backward, and working memory of ops.
  kSnapshot,     // Copies that are written to disk while training goes on.
};
constexpr int kNumMemoryKinds = 7;

// Device memory is for kernels alone: on no device may the host follow its addresses. Data between
// host and device is staged in pinned or host memory. On a CPU the first three are the host's
// memory; on a GPU only copies to and from pinned memory run beside kernels. kDisk stands for
// addresses of a spill file (spill_memory.h), which only simulated devices give out.
enum class MemoryPlace { kDevice, kPinned, kHost, kDisk };
constexpr int kNumMemoryPlaces = 4;

// Tensors on a disk begin at multiples of so many bytes: no disk's blocks are larger.
inline constexpr int64_t kSpillAlignment = 4096;

// The CPU device sets this bit in its device addresses. No process on x86-64 may touch such an
// address: code that follows one is ended by the processor at once.
inline constexpr uintptr_t kDeviceAddress = uintptr_t{1} << 62;

// The address at which the CPU may touch the memory of a device's address. Null and addresses that
// no device gave out are returned unchanged.
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
