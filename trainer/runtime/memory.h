// What memory is for, and where it lies.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_MEMORY_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_MEMORY_H_

namespace fsdp {

enum class MemoryKind {
  kParameters,   // Shards: master weights and compute copies.
  kGradients,    // Gradient shards, and full gradients where there is no shard.
  kOptimizer,    // State.
  kUnsharded,    // Gather and gradient slots: what exists only while a unit is in use.
  kActivations,  // What forward keeps for backward, and working memory of ops.
  kSnapshot,     // Copies that are written to disk while training goes on.
};
constexpr int kNumMemoryKinds = 6;

// Device memory is for kernels alone: the host must not follow its addresses, on no device. What
// goes between host and device is staged in one of the others. On a CPU all three are the host's
// memory; on a GPU only copies to and from pinned memory run beside kernels.
enum class MemoryPlace { kDevice, kPinned, kHost };
constexpr int kNumMemoryPlaces = 3;

struct MemoryUse {
  MemoryUse(MemoryKind k, MemoryPlace p = MemoryPlace::kDevice)  // NOLINT: a kind is a use.
      : kind(k), place(p) {}

  MemoryKind kind;
  MemoryPlace place;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_MEMORY_H_
