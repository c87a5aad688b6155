// Kernels of updates of whole matrices: matrix_pieces.h, newton_schulz.h, row_moments.h.
// Tests: tests/trainer/ops/newton_schulz_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_MATRIX_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_MATRIX_BACKENDS_H_

#include <cstdint>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/matrix_pieces.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// `pack`: from spread to packed.
[[gnu::weak]] void MovePiecesCuda(CudaStreamHandle stream, const std::vector<SpreadPiece>& pieces,
                                  bool pack, float scale, const ConstView& from, const View& to);
[[gnu::weak]] void DivideByNormCuda(CudaStreamHandle stream, float eps, const ConstView& sum,
                                    const View& x);
[[gnu::weak]] void SymmetricSumCuda(CudaStreamHandle stream, int64_t block, float p_scale,
                                    const ConstView& products, float a_scale, const ConstView& a,
                                    const View& out);

// row_moments.h. `old` and `fresh`: the factors of v and of a sum of squares in the new v.
struct LineFactors {
  float old = 0, fresh = 0;
  float scale = 1, eps = 1e-10f;
};
[[gnu::weak]] void LineSquaresCuda(CudaStreamHandle stream, bool columns, const View& y,
                                   const View& sums);
[[gnu::weak]] void LineFactorsCuda(CudaStreamHandle stream, const LineFactors& of,
                                   const ConstView& gate, const View& v, const View& factors);
[[gnu::weak]] void ScaleLinesCuda(CudaStreamHandle stream, bool columns, const ConstView& factors,
                                  const View& y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_MATRIX_BACKENDS_H_
