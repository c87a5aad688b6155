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

// The 16 bits of a draw by stochastic_rounding.h.
inline uint32_t DrawOf(PhiloxKey key, uint64_t tensor, uint64_t element) {
  const uint64_t block = element / 64 * 8 + element % 32 / 4;
  const PhiloxCounter words =
      PhiloxOf(7,
               {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                static_cast<uint32_t>(tensor), static_cast<uint32_t>(tensor >> 32)},
               key);
  const uint32_t word = words[element % 64 / 32 * 2 + element / 2 % 2];
  return element % 2 == 0 ? word & 0xffff : word >> 16;
}
// The draw of an update by update.h.
inline uint32_t UpdateDraw(uint64_t seed, uint64_t update, uint32_t what, uint64_t tensor,
                           uint64_t element) {
  const PhiloxCounter key =
      Philox({static_cast<uint32_t>(update), static_cast<uint32_t>(update >> 32), what, 0},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return DrawOf({key[0], key[1]}, tensor, element);
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
