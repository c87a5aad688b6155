// What an operation costs, kernel by kernel. Every op states it once, the same for each device; the
// simulator prices it, and MFU, the limits of `bench` and its list of a step's products read it.
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
  kLink,       // A collective.
};

struct KernelCost {
  KernelKind kind = KernelKind::kMemory;
  Cost cost;        // All of it. What two kernels of an op read counts for the first.
  Product product;  // Of kProduct.

  KernelCost(const Cost& c) : cost(c) {}  // NOLINT: a Cost is one of kMemory.
  KernelCost(KernelKind k, const Cost& c) : kind(k), cost(c) {}
  // `rest`: the bytes, and the FLOPs beyond the product's.
  KernelCost(const Product& p, const Cost& rest)
      : kind(KernelKind::kProduct), cost(rest), product(p) {
    cost.flops += p.flops();
  }
};

Cost Sum(const std::vector<KernelCost>& kernels);
// A collective's bytes over its links, of any other operation what it reads and writes.
int64_t BytesMoved(const std::vector<KernelCost>& kernels);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_COST_H_
