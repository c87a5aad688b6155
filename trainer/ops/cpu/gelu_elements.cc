#include "trainer/ops/cpu/gelu_elements.h"

#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/gelu_kernels.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

const GeluKernels& Kernels() { return ForThisCpu(kGeluAvx2, kGeluAvx512); }

}  // namespace

void GeluForwardElements(const ConstView& x, int64_t begin, int64_t end, const View& y) {
  FloatPiece in, out;
  ForEachPiece(x.dtype, begin, end, [&](int64_t at, int64_t n) {
    float* to = FloatsToWrite(y, at, out);
    Kernels().forward(ReadFloats(x, at, n, in), n, to);
    WriteFloats(to, n, y, at);
  });
}

void GeluBackwardElements(const ConstView& x, const ConstView& dy, int64_t begin, int64_t end,
                          const View& dx) {
  FloatPiece in, gradient, out;
  ForEachPiece(x.dtype, begin, end, [&](int64_t at, int64_t n) {
    float* to = FloatsToWrite(dx, at, out);
    Kernels().backward(ReadFloats(x, at, n, in), ReadFloats(dy, at, n, gradient), n, to);
    WriteFloats(to, n, dx, at);
  });
}

}  // namespace fsdp
