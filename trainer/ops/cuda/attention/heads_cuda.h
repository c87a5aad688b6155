// Heads of tensors (heads.h), in the form for kernels.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_HEADS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_HEADS_CUDA_H_

#include <cstdint>
#include <type_traits>

#include "trainer/core/view.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/heads.h"

namespace fsdp {

// One head: row i begins at data + i stride, and has head_dim elements.
template <typename T>
struct HeadRowsCuda {
  T* data;
  int64_t stride;
  int rows, head_dim;
  bool packs;  // All rows begin at multiples of 16 bytes and are made of packs.
};

// Heads of all samples: the rows of a sample follow those of the one before.
template <typename T>
struct HeadsCuda {
  T* data;  // The first element of the first head's first row.
  int64_t stride;
  int rows, head_dim;  // Rows of a sample; elements of a row.
  bool packs;

  __device__ HeadRowsCuda<T> Rows(int64_t sample, int64_t head) const {
    return {data + sample * rows * stride + head * head_dim, stride, rows, head_dim, packs};
  }
};

// T: the type of elements.
template <typename T, typename AnyView>
auto HeadsOf(const BasicHeads<AnyView>& heads) {
  using Element = std::conditional_t<std::is_same_v<AnyView, View>, T, const T>;
  const Shape& shape = heads.tensor.shape;
  Element* const data = reinterpret_cast<Element*>(heads.tensor.data) + heads.begin();
  return HeadsCuda<Element>{data, heads.stride(), static_cast<int>(shape[1]),
                            static_cast<int>(shape[3]),
                            IsAligned(data) && shape[3] % kPack<T> == 0};
}
// All heads of a tensor.
template <typename T, typename AnyView>
auto HeadsOf(const AnyView& view) {
  return HeadsOf<T>(BasicHeads<AnyView>(view, 0, view.shape[2]));
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_HEADS_CUDA_H_
