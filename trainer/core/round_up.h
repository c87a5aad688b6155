// Sizes in whole steps.
#ifndef FSDP_TRAIN_TRAINER_CORE_ROUND_UP_H_
#define FSDP_TRAIN_TRAINER_CORE_ROUND_UP_H_

#include <concepts>
#include <type_traits>

namespace fsdp {

// The least multiple of `to` that is at least n. to > 0, n >= 0.
template <std::integral N>
constexpr N RoundUp(N n, std::type_identity_t<N> to) {
  return (n + to - 1) / to * to;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_ROUND_UP_H_
