// An operation's cost, kernel by kernel. Every op states its cost once, the same for each device.
// The simulator prices the cost; MFU, the limits of `bench` and its list of a step's products read
// it.
// Tests: tests/trainer/bench/step_floor_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_COST_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_COST_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "trainer/core/dtype.h"

namespace fsdp {

struct Cost {
  double flops = 0;       // A fused multiply-add counts two.
  double bytes_read = 0;  // From device memory, each operand once.
  double bytes_written = 0;
  double link_bytes = 0;  // Sent by this rank to its peers.
  int link_messages = 0;  // Rounds in which this rank must hear from a peer.

  Cost& operator+=(const Cost& other);
};

// C[m, n] = op(A)[m, k] op(B)[k, n], or += with `adds`.
struct Product {
  const char* name = "";  // Unique in its op: "dx".
  int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  bool adds = false;
  int64_t count = 1;               // So many products, one after the other: an op in chunks.
  DType dtype = DType::kFloat32;   // A's and B's.
  DType result = DType::kFloat32;  // C's, where a CUDA library multiplies.
  // So many products, each with its own B, share the m rows of A and C. With a_transposed each has
  // its own C, and they share the k rows of A and B. Only the device knows which rows are whose
  // (ops/grouped_linear.h); FLOPs are the same for all divisions.
  int64_t groups = 1;
  // Added or applied to the sums before they are rounded to C; a residual is neither.
  bool bias = false;
  enum class Activation { kNone, kGelu, kGeluBackward } activation = Activation::kNone;

  // A group's m and k on average, at least 1.
  double MeanM() const { return Mean(m, a_transposed ? 1 : groups); }
  double MeanK() const { return Mean(k, a_transposed ? groups : 1); }
  double flops() const {
    return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k * count);
  }

 private:
  static double Mean(int64_t rows, int64_t of) {
    return std::max(1.0, static_cast<double>(rows) / static_cast<double>(of));
  }
};

enum class KernelKind {
  kMemory,     // Element by element, and sums.
  kProduct,    // A matrix product, and what is applied to its result on the way.
  kAttention,  // Products in tiles.
  kCopy,       // Bytes unchanged. A GPU's runtime copies, so a GPU has no kernel for it.
  kLink,       // A collective.
};

// A kernel's cost on a GPU, with our present CUDA kernels.
struct OnGpu {
  // Launches of kernels, or copies. A library call counts one, whatever it launches; so does a
  // collective.
  int64_t launches = 1;
  // Bytes beyond the cost's: results that a launch leaves for a later one of the op, and operands
  // that are read once more. A library's kernels write their workspace once and read it once.
  double extra_bytes = 0;
};

struct KernelCost {
  KernelKind kind = KernelKind::kMemory;
  Cost cost;        // The whole cost. An operand that two kernels of an op read counts for the
                    // first.
  Product product;  // For kProduct.
  OnGpu gpu;
  // FLOPs that MFU counts: products, without what is computed beside them.
  double model_flops = 0;

  // One launch, or none where no bytes are moved.
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
// Launches on a GPU. Tests compare what every op states with what it launches.
Launches LaunchesOf(const std::vector<KernelCost>& kernels);
// A collective's bytes over its links; any other operation's bytes read and written.
int64_t BytesMoved(const std::vector<KernelCost>& kernels);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_COST_H_
