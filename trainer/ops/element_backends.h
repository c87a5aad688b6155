// Kernels that go element by element: activations.h, cast.h, dropout.h, elementwise.h, swiglu.h.
// Tests: tests/trainer/ops/activations_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ELEMENT_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_ELEMENT_BACKENDS_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/ops/activation.h"
#include "trainer/runtime/cuda_stream_handle.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// activations.h
[[gnu::weak]] void ActivationForwardCuda(CudaStreamHandle stream, Activation f, const ConstView& x,
                                         const View& y);
[[gnu::weak]] void ActivationBackwardCuda(CudaStreamHandle stream, Activation f,
                                          const ConstView& saved, const ConstView& dy,
                                          const View& dx);

// cast.h
// The dtypes differ. x may lie in pinned host memory. Place: ThreadPool&, CudaStreamHandle.
template <typename Place>
using CastKernel = void(Place place, const ConstView& x, const View& y);
CastKernel<ThreadPool&> CastCpu;
[[gnu::weak]] CastKernel<CudaStreamHandle> CastCuda;

// dropout.h
// An element is kept where its word is at least `threshold`.
[[gnu::weak]] void DropoutCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& keys,
                               uint32_t site, uint32_t threshold, float scale, const View& y);

// elementwise.h
// fp32, bf16 or fp16: all operands have y's dtype.
[[gnu::weak]] void AddCuda(CudaStreamHandle stream, const ConstView& a, const ConstView& b,
                           const View& y);
[[gnu::weak]] void ScaleCuda(CudaStreamHandle stream, float factor, const View& y);
// bits: the low ones of each element of 2 or 4 bytes.
[[gnu::weak]] void FillCuda(CudaStreamHandle stream, uint32_t bits, const View& y);
// Also to and from pinned host memory.
[[gnu::weak]] void CopyCuda(CudaStreamHandle stream, const ConstView& x, const View& y);

// swiglu.h
[[gnu::weak]] void SwigluForwardCuda(CudaStreamHandle stream, const ConstView& x, const View& y);
[[gnu::weak]] void SwigluBackwardCuda(CudaStreamHandle stream, const ConstView& x,
                                      const ConstView& dy, const View& dx);
[[gnu::weak]] void GatedGeluForwardCuda(CudaStreamHandle stream, const ConstView& x, const View& y);
[[gnu::weak]] void GatedGeluBackwardCuda(CudaStreamHandle stream, const ConstView& x,
                                         const ConstView& dy, const View& dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ELEMENT_BACKENDS_H_
