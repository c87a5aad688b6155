// Kernels of attention and of what stands before it: attention.h, attention_cached.h,
// attention_math.h, rope.h.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_BACKENDS_H_

#include <cstdint>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/head_mixing.h"
#include "trainer/ops/heads.h"
#include "trainer/runtime/cuda_stream_handle.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// Place: ThreadPool& on the CPU, CudaStreamHandle on CUDA.

inline constexpr float kMostFp16 = 65504;

// attention.h
[[gnu::weak]] void AttentionForwardCuda(CudaStreamHandle stream, const AttentionDims& dims,
                                        const AttentionInputs& in, const View& out,
                                        const View& lse);

// workspace: dout . out, [batch, heads, seq] floats; with a bias [batch, heads, distances] more.
[[gnu::weak]] void AttentionBackwardCuda(CudaStreamHandle stream, const AttentionDims& dims,
                                         const AttentionInputs& in, const ConstView& out,
                                         const ConstView& lse, const ConstView& dout,
                                         const AttentionGradients& gradients,
                                         const View& workspace);

// attention_cached.h
[[gnu::weak]] void AttentionCachedCuda(CudaStreamHandle stream, const AttentionCachedDims& dims,
                                       const AttentionInputs& in, const View& cache_k,
                                       const View& cache_v, const View& out);

// attention_math.h
template <typename Place>
using AttentionMathForwardKernel = void(Place place, const AttentionDims& dims,
                                        const AttentionInputs& in, const HeadMixing& mixing,
                                        const View& probabilities, const View& weights,
                                        const View& out);
AttentionMathForwardKernel<ThreadPool&> AttentionMathForwardCpu;
[[gnu::weak]] AttentionMathForwardKernel<CudaStreamHandle> AttentionMathForwardCuda;

template <typename Place>
using AttentionMathBackwardKernel = void(Place place, const AttentionDims& dims,
                                         const AttentionInputs& in, const HeadMixing& mixing,
                                         const ConstView& probabilities, const ConstView& weights,
                                         const ConstView& dout, const AttentionGradients& gradients,
                                         const HeadMixingGradients& mixing_gradients,
                                         const AttentionMathWorkspace& workspace);
AttentionMathBackwardKernel<ThreadPool&> AttentionMathBackwardCpu;
[[gnu::weak]] AttentionMathBackwardKernel<CudaStreamHandle> AttentionMathBackwardCuda;

[[gnu::weak]] void MixHeadsCuda(CudaStreamHandle stream, const AttentionDims& dims,
                                const AttentionInputs& in, const HeadMixing& mixing,
                                const View& probabilities, const View& weights);
// dw becomes dp, in place. `sums`: the sums of all parts.
[[gnu::weak]] void MixHeadsBackwardCuda(CudaStreamHandle stream, const AttentionDims& dims,
                                        const AttentionInputs& in, const HeadMixing& mixing,
                                        const ConstView& probabilities, const View& dw,
                                        const View& sums, const HeadMixingGradients& gradients);

// rope.h
// The most frequencies of one launch, which are among its arguments.
inline constexpr int64_t kRopeFrequencies = 64;

[[gnu::weak]] void RopeTableCuda(CudaStreamHandle stream, const std::vector<double>& frequencies,
                                 double factor, const View& table);
[[gnu::weak]] void RopeCuda(CudaStreamHandle stream, const ConstView& table,
                            const ConstView& positions, bool backward, const Heads& x);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_BACKENDS_H_
