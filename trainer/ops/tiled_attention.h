// Names the products of an attention kernel in its cost (KernelCost::product).
// Tests: tests/trainer/simulate/price_list_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_TILED_ATTENTION_H_
#define FSDP_TRAIN_TRAINER_OPS_TILED_ATTENTION_H_

#include <string_view>

#include "trainer/runtime/cost.h"

namespace fsdp {

// The kernel that multiplies in tiles has this name. Its product counts all pairs, though a mask
// may let it skip some. Any other kernel of attention multiplies `count` matrices at once.
inline constexpr char kTiledAttention[] = "in tiles";

inline bool IsTiled(const KernelCost& kernel) {
  return kernel.kind == KernelKind::kAttention &&
         (kernel.product.m == 0 || std::string_view(kernel.product.name) == kTiledAttention);
}

// FLOPs of the kernel's products, masked pairs included: the FSDP paper's count (arXiv:2304.11277,
// 5.4).
inline double UnmaskedFlops(const KernelCost& kernel) { return kernel.product.flops(); }

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_TILED_ATTENTION_H_
