#include "trainer/ops/cuda/update/update_shard.h"
#include "trainer/ops/update_backends.h"

namespace fsdp {
namespace {

template <bool kMomentum>
struct SgdRule {
  struct Constants {
    float momentum;  // For an update that keeps a state.
  };
  static constexpr int kStates = kMomentum ? 1 : 0;

  struct Factors {
    float c, momentum;
    float lr;  // s lr.
    float weight_decay;
  };
  static __device__ Factors FactorsOf(const Constants& constants, float c, const ElementRule& rule,
                                      const UpdateFactors& factors) {
    return {c, constants.momentum, static_cast<float>(rule.lr_scale * factors.lr),
            static_cast<float>(rule.weight_decay)};
  }

  static __device__ void Update(const Factors& f, float g, float& p, float& b, float&) {
    float d = __fmaf_rn(f.c, g, __fmul_rn(f.weight_decay, p));
    if constexpr (kMomentum) b = d = __fmaf_rn(f.momentum, b, d);
    p = __fmaf_rn(-f.lr, d, p);
  }
};

}  // namespace

void SgdCuda(CudaStreamHandle stream, float momentum, const UpdateOperands& operands) {
  if (operands.states[0].data == nullptr) {
    return UpdateShardCuda<SgdRule<false>>(stream, operands, {momentum});
  }
  UpdateShardCuda<SgdRule<true>>(stream, operands, {momentum});
}

}  // namespace fsdp
