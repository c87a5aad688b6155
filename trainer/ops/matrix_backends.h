// Kernels of updates of whole matrices: matrix_pieces.h, newton_schulz.h.
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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_MATRIX_BACKENDS_H_
