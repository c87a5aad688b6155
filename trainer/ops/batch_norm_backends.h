// Kernels of batch norms: batch_norm.h, running_statistics.h.
// Tests: tests/trainer/ops/batch_norm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_BATCH_NORM_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_BATCH_NORM_BACKENDS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// The sizes of a batch norm (batch_norm.h), as kernels of all devices use them.
struct BatchNormShape {
  int64_t samples, pixels, channels;  // Pixels of a sample.

  static constexpr int64_t kPiece = 256;  // Pixels, at most.

  int64_t rows() const { return samples * pixels; }
  int64_t pieces_of_sample() const { return (pixels + kPiece - 1) / kPiece; }
  int64_t pieces() const { return samples * pieces_of_sample(); }
};

// Place: ThreadPool& on the CPU, CudaStreamHandle on CUDA.

// batch_norm.h
template <typename Place>
using BatchMomentsKernel = void(Place place, const BatchNormShape& shape, const ConstView& x,
                                const ConstView& weights, const View& part, const View& workspace);
BatchMomentsKernel<ThreadPool&> BatchMomentsCpu;
[[gnu::weak]] BatchMomentsKernel<CudaStreamHandle> BatchMomentsCuda;

template <typename Place>
using JoinMomentsKernel = void(Place place, const ConstView& parts, float eps,
                               const View& statistics, float momentum,
                               const std::optional<View>& mean,
                               const std::optional<View>& variance);
JoinMomentsKernel<ThreadPool&> JoinMomentsCpu;
[[gnu::weak]] JoinMomentsKernel<CudaStreamHandle> JoinMomentsCuda;

template <typename Place>
using UseRunningMomentsKernel = void(Place place, const ConstView& mean, const ConstView& variance,
                                     float eps, const View& statistics);
UseRunningMomentsKernel<ThreadPool&> UseRunningMomentsCpu;
[[gnu::weak]] UseRunningMomentsKernel<CudaStreamHandle> UseRunningMomentsCuda;

template <typename Place>
using BatchNormForwardKernel = void(Place place, const BatchNormShape& shape, const ConstView& x,
                                    const ConstView& statistics, const ConstView& w,
                                    const ConstView& b, bool relu, const View& y);
BatchNormForwardKernel<ThreadPool&> BatchNormForwardCpu;
[[gnu::weak]] BatchNormForwardKernel<CudaStreamHandle> BatchNormForwardCuda;

template <typename Place>
using BatchNormSumsKernel = void(Place place, const BatchNormShape& shape, const ConstView& x,
                                 const ConstView& statistics, const ConstView& w,
                                 const ConstView& b, bool relu, const ConstView& dy,
                                 const std::optional<View>& dw, const std::optional<View>& db,
                                 const View& sums, const View& workspace);
BatchNormSumsKernel<ThreadPool&> BatchNormSumsCpu;
[[gnu::weak]] BatchNormSumsKernel<CudaStreamHandle> BatchNormSumsCuda;

template <typename Place>
using BatchNormBackwardKernel = void(Place place, const BatchNormShape& shape, const ConstView& x,
                                     const ConstView& weights, const ConstView& statistics,
                                     const ConstView& w, const ConstView& b, bool relu,
                                     const ConstView& sums, const ConstView& dy, const View& dx);
BatchNormBackwardKernel<ThreadPool&> BatchNormBackwardCpu;
[[gnu::weak]] BatchNormBackwardKernel<CudaStreamHandle> BatchNormBackwardCuda;

// running_statistics.h
[[gnu::weak]] void CountBatchCuda(CudaStreamHandle stream, const View& count);
[[gnu::weak]] void TakeUnlessNaNCuda(CudaStreamHandle stream, const ConstView& coefficient,
                                     float divisor, const ConstView& from, const View& to);
[[gnu::weak]] void MeanOfCuda(CudaStreamHandle stream, const ConstView& sums,
                              const ConstView& weight, const View& mean);
[[gnu::weak]] void MoveBiasCuda(CudaStreamHandle stream, const ConstView& coefficient,
                                const ConstView& loads, float rate, const View& bias);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_BATCH_NORM_BACKENDS_H_
