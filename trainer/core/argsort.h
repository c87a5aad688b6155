#ifndef FSDP_TRAIN_TRAINER_CORE_ARGSORT_H_
#define FSDP_TRAIN_TRAINER_CORE_ARGSORT_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>

namespace fsdp {

// order: the indexes of `ids`, sorted by id; equal ids keep their order. Both spans have one
// length. Allocates nothing.
inline void Argsort(std::span<const int32_t> ids, std::span<int32_t> order) {
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return ids[a] != ids[b] ? ids[a] < ids[b] : a < b; });
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_ARGSORT_H_
