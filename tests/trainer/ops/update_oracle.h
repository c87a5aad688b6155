// The result of an update for an element by update.h, with the operations that all kernels fuse;
// and the draws that it is rounded by.
#ifndef FSDP_TRAIN_TESTS_TRAINER_OPS_UPDATE_ORACLE_H_
#define FSDP_TRAIN_TESTS_TRAINER_OPS_UPDATE_ORACLE_H_

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/core/philox.h"
#include "trainer/ops/cpu/update_kernels.h"

namespace fsdp {

// trainer/core/philox.cc with a number of rounds.
inline PhiloxCounter PhiloxOf(int rounds, PhiloxCounter c, PhiloxKey k) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  for (int round = 0; round < rounds; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {high(p1) ^ c[1] ^ k[0], low(p1), high(p0) ^ c[3] ^ k[1], low(p0)};
    k = {k[0] + 0x9E3779B9u, k[1] + 0xBB67AE85u};
  }
  return c;
}

// The halves of a block whose sum is the draw of `kind` for the element: bit h for half h, of the
// lower half of word h / 2 where h is even.
inline uint32_t HalvesOf(uint32_t kind, uint64_t element) {
  const uint32_t own = element % 64 < 32 ? 0 : 4, other = 4 - own, i = element % 4;
  const auto half = [](uint32_t first, uint32_t at) { return 1u << (first + at % 4); };
  const uint32_t halves = half(own, i);
  if (kind == 0) return halves;
  const uint32_t from = kind == 1 ? i : i + 2;
  return halves | half(other, from) | half(other, from + 1);
}

// The 16 bits of a draw by stochastic_rounding.h.
inline uint32_t DrawOf(PhiloxKey key, uint64_t tensor, uint32_t kind, uint64_t element) {
  const uint64_t block = element / 64 * 8 + element % 32 / 4;
  const PhiloxCounter words =
      PhiloxOf(7,
               {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                static_cast<uint32_t>(tensor), static_cast<uint32_t>(tensor >> 32)},
               key);
  uint32_t draw = 0;
  for (uint32_t h = 0, halves = HalvesOf(kind, element); h < 8; ++h) {
    if (halves >> h & 1) draw ^= words[h / 2] >> h % 2 * 16 & 0xffff;
  }
  return draw;
}
// The draw of an update by update.h.
inline uint32_t UpdateDraw(uint64_t seed, uint64_t update, uint32_t kind, uint64_t tensor,
                           uint64_t element) {
  const PhiloxCounter key =
      Philox({static_cast<uint32_t>(update), static_cast<uint32_t>(update >> 32), 0, 0},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return DrawOf({key[0], key[1]}, tensor, kind, element);
}

// The nearest bf16 towards zero.
inline float Truncated(float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffff0000u);
}
// The next of bf16 away from zero.
inline float Beyond(float truncated) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(truncated) + 0x10000u);
}

enum class UpdateRule { kAdamW, kSgd, kMomentum };

struct UpdateVariant {
  UpdateRule rule;
  DType master, state, gradient;
  std::optional<DType> copy;
  bool average;
};

inline std::vector<UpdateVariant> EveryUpdateVariant() {
  constexpr DType kFloat = DType::kFloat32, kBFloat = DType::kBFloat16, kHalf = DType::kFloat16;
  std::vector<UpdateVariant> variants;
  for (const UpdateRule rule : {UpdateRule::kAdamW, UpdateRule::kSgd, UpdateRule::kMomentum}) {
    for (const DType master : {kFloat, kBFloat}) {
      for (const DType state : {kFloat, kBFloat}) {
        for (const DType gradient : {kFloat, kBFloat, kHalf}) {
          for (const std::optional<DType> copy :
               {std::optional<DType>(), {kFloat}, {kBFloat}, {kHalf}}) {
            for (const bool average : {false, true}) {
              variants.push_back({rule, master, state, gradient, copy, average});
            }
          }
        }
      }
    }
  }
  return variants;
}

inline std::string NameOf(const UpdateVariant& v) {
  return "rule " + std::to_string(static_cast<int>(v.rule)) + ", " + std::string(Name(v.master)) +
         ", state " + std::string(Name(v.state)) + ", g " + std::string(Name(v.gradient)) +
         ", copy " + (v.copy ? std::string(Name(*v.copy)) : "none") + ", average " +
         std::to_string(v.average) + ": ";
}

struct UpdatedElement {
  float g, p, first, second, average;
};

// draws: for p and for both states. rate: 1 - decay.
inline void UpdateElement(const UpdateVariant& variant, const AdamWFactors& adamw,
                          const SgdFactors& sgd, float rate, const std::array<uint32_t, 3>& draws,
                          UpdatedElement& e) {
  const auto kept = [&](DType dtype, float x, int which) {
    if (dtype == DType::kFloat32) return x;
    return Truncated(std::bit_cast<float>(std::bit_cast<uint32_t>(x) + draws[which]));
  };
  if (variant.rule == UpdateRule::kAdamW) {
    const float scaled = adamw.c * e.g;
    const float m = std::fma(adamw.beta1_new, scaled - e.first, e.first);
    const float v = std::fma(adamw.beta2_old, e.second, adamw.beta2_new * scaled * scaled);
    e.p = std::fma(adamw.keep, e.p,
                   -(adamw.step_size * (m / std::fma(std::sqrt(v), adamw.root_factor, adamw.eps))));
    e.first = kept(variant.state, m, 1);
    e.second = kept(variant.state, v, 2);
  } else {
    float d = std::fma(sgd.c, e.g, sgd.weight_decay * e.p);
    if (variant.rule == UpdateRule::kMomentum) {
      d = std::fma(sgd.momentum, e.first, d);
      e.first = kept(variant.state, d, 1);
    }
    e.p = std::fma(-sgd.lr, d, e.p);
  }
  e.p = kept(variant.master, e.p, 0);
  if (variant.average) e.average = std::fma(rate, e.p - e.average, e.average);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TRAINER_OPS_UPDATE_ORACLE_H_
