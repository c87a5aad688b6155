// What an operation costs, kernel by kernel. Every op states it once, the same for each device; the
// simulator prices it, and MFU, the limits of `bench` and its list of a step's products read it.
// Tests: tests/trainer/bench/step_floor_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_COST_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_COST_H_

#include <cstdint>
#include <vector>

#include "trainer/core/dtype.h"

namespace fsdp {

struct Cost {
  double flops = 0;       // A fused multiply-add counts two.
  double bytes_read = 0;  // Of device memory, each operand once.
  double bytes_written = 0;
  double link_bytes = 0;  // Sent by this rank to its peers.
  int link_messages = 0;  // Rounds in which it must hear from a peer.

  Cost& operator+=(const Cost& other);
};

// C[m, n] = op(A)[m, k] op(B)[k, n], or += where it `adds`.
struct Product {
  const char* name = "";  // Among those of its op: "dx".
  int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  bool adds = false;
  int64_t count = 1;               // As many of them, one after the other: an op in chunks.
  DType dtype = DType::kFloat32;   // Of A and B.
  DType result = DType::kFloat32;  // Of C, where a library of CUDA's multiplies.
  // What comes to its sums before they are rounded to C; a residual counts for none.
  bool bias = false;
  enum class Activation { kNone, kGelu, kGeluBackward } activation = Activation::kNone;

  double flops() const {
    return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k * count);
  }
};

enum class KernelKind {
  kMemory,     // Element by element, and sums.
  kProduct,    // A matrix product, with what is computed on the way of its result.
  kAttention,  // Products in tiles.
  kCopy,       // Bytes as they are: by a GPU's runtime, and so no kernel there.
  kLink,       // A collective.
};

// What it comes to on a GPU, with the kernels that there are.
struct OnGpu {
  // Of kernels, or of copies. A call of a library counts one, whatever that launches; so does a
  // collective.
  int64_t launches = 1;
  // Beside the cost's bytes: what a launch leaves for a later one of the op, and what is read once
  // more. Of a library's kernels its workspace, written once and read once.
  double extra_bytes = 0;
};

struct KernelCost {
  KernelKind kind = KernelKind::kMemory;
  Cost cost;        // All of it. What two kernels of an op read counts for the first.
  Product product;  // Of kProduct.
  OnGpu gpu;
  // What MFU counts of it: products, without what is computed beside them.
  double model_flops = 0;

  // One launch, and none where no bytes are moved.
  KernelCost(const Cost& c) : KernelCost(KernelKind::kMemory, c) {}  // NOLINT: a Cost is one.
  KernelCost(KernelKind k, const Cost& c)
      : KernelCost(k, c, OnGpu{.launches = c.bytes_read + c.bytes_written > 0}) {}
  KernelCost(const Cost& c, const OnGpu& g) : KernelCost(KernelKind::kMemory, c, g) {}
  KernelCost(KernelKind k, const Cost& c, const OnGpu& g, double model = 0)
      : kind(k), cost(c), gpu(g), model_flops(model) {}
  // `rest`: the bytes, and the FLOPs beyond the product's.
  KernelCost(const Product& p, const Cost& rest, double extra_bytes = 0)
      : kind(KernelKind::kProduct),
        cost(rest),
        product(p),
        gpu{p.m > 0 && p.n > 0 ? p.count : 0, extra_bytes},
        model_flops(p.flops()) {
    cost.flops += p.flops();
  }
};

struct Launches {
  int64_t kernels = 0, copies = 0;

  Launches& operator+=(const Launches& other);
  bool operator==(const Launches&) const = default;
};

Cost Sum(const std::vector<KernelCost>& kernels);
// On a GPU. Tests hold what every op states to what it launches.
Launches LaunchesOf(const std::vector<KernelCost>& kernels);
// A collective's bytes over its links, of any other operation what it reads and writes.
int64_t BytesMoved(const std::vector<KernelCost>& kernels);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_COST_H_
