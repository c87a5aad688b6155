#include "trainer/ops/cuda/update/update_shard.h"
#include "trainer/ops/update_backends.h"

namespace fsdp {
namespace {

struct MomentumRule {
  using Constants = MomentumConstants;
  using P = float;
  static constexpr int kStates = 1;

  struct Factors {
    float c;
    MomentumConstants constants;
  };
  static __device__ Factors FactorsOf(const Constants& constants, float c, const ElementRule&,
                                      const UpdateFactors&) {
    return {c, constants};
  }

  static __device__ void Update(const Factors& f, float g, float& u, float& m, float&) {
    const float gradient = __fmul_rn(f.c, g);
    m = __fmaf_rn(f.constants.fresh, gradient - m, m);
    u = __fmaf_rn(f.constants.ahead, gradient - m, m);
  }
};

}  // namespace

void MomentumCuda(CudaStreamHandle stream, const MomentumConstants& constants,
                  const UpdateOperands& operands) {
  UpdateShardCuda<MomentumRule>(stream, operands, constants);
}

}  // namespace fsdp
