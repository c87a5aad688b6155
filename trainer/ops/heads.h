// Heads of attention as a part of a tensor: q, k and v may be parts of one packed product, or
// tensors of their own.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_HEADS_H_
#define FSDP_TRAIN_TRAINER_OPS_HEADS_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/ops/arguments.h"

namespace fsdp {

// Heads [first, first + count) of a tensor [batch, seq, all heads, head_dim].
template <typename AnyView>
struct BasicHeads {
  AnyView tensor;
  int64_t first = 0, count = 0;

  BasicHeads() = default;
  BasicHeads(const AnyView& t, int64_t f, int64_t n) : tensor(t), first(f), count(n) {}
  template <typename Other>  // NOLINTNEXTLINE(google-explicit-constructor): as a View.
  BasicHeads(const BasicHeads<Other>& o) : tensor(o.tensor), first(o.first), count(o.count) {}

  // Elements from one row of a head to the next.
  int64_t stride() const { return tensor.shape[2] * tensor.shape[3]; }
  // The first element of the first head's first row.
  int64_t begin() const { return first * tensor.shape[3]; }
};
using Heads = BasicHeads<View>;
using ConstHeads = BasicHeads<ConstView>;

template <typename AnyView, typename Visit>
void ForEachAddress(BasicHeads<AnyView>& heads, const Visit& visit) {
  visit(heads.tensor);
}

// Checks the dtype, the memory, the four dimensions, and that the tensor has these heads.
inline void CheckHeads(const Arguments& args, const char* name, const ConstHeads& heads,
                       DType dtype) {
  args.CheckRank(name, heads.tensor, dtype, 4);
  if (heads.first < 0 || heads.count < 0 || heads.first + heads.count > heads.tensor.shape[2]) {
    args.Fail(std::string(name) + " is heads " + std::to_string(heads.first) + " to " +
              std::to_string(heads.first + heads.count) + " of " + heads.tensor.shape.ToString() +
              ", want [batch, seq, heads, head_dim]");
  }
}

// Checks that they have no element in common: different heads of one tensor, or different tensors.
inline void CheckHeadsApart(const Arguments& args, const char* name_a, const ConstHeads& a,
                            const char* name_b, const ConstHeads& b) {
  const bool one = a.tensor.data == b.tensor.data && a.tensor.shape == b.tensor.shape;
  if (one && (a.first + a.count <= b.first || b.first + b.count <= a.first)) return;
  args.CheckDisjoint(name_a, a.tensor, name_b, b.tensor);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_HEADS_H_
