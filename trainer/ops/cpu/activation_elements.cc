#include "trainer/ops/cpu/activation_elements.h"

#include "trainer/ops/cpu/activation_kernels.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

const ActivationKernels& KernelsOf(Activation f) {
  return ForThisCpu(kActivationsAvx2, kActivationsAvx512)[static_cast<int>(f)];
}

}  // namespace

void ActivationForwardElements(Activation f, const ConstView& x, int64_t begin, int64_t end,
                               const View& y) {
  FloatPiece in, out;
  ForEachPiece(x.dtype, begin, end, [&](int64_t at, int64_t n) {
    float* to = FloatsToWrite(y, at, out);
    KernelsOf(f).forward(ReadFloats(x, at, n, in), n, to);
    WriteFloats(to, n, y, at);
  });
}

void ActivationBackwardElements(Activation f, const ConstView& saved, const ConstView& dy,
                                int64_t begin, int64_t end, const View& dx) {
  FloatPiece in, gradient, out;
  ForEachPiece(saved.dtype, begin, end, [&](int64_t at, int64_t n) {
    float* to = FloatsToWrite(dx, at, out);
    KernelsOf(f).backward(ReadFloats(saved, at, n, in), ReadFloats(dy, at, n, gradient), n, to);
    WriteFloats(to, n, dx, at);
  });
}

}  // namespace fsdp
