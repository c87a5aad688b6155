#include "trainer/ops/activations.h"

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/activation_elements.h"
#include "trainer/ops/cpu/activation_kernels.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/element_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

const ActivationKernels& KernelsOf(Activation f) {
  return ForThisCpu(kActivationsAvx2, kActivationsAvx512)[static_cast<int>(f)];
}

constexpr int64_t kGrain = 256;

void ActivationForwardCpu(ThreadPool& pool, Activation f, const ConstView& x, const View& y) {
  pool.ParallelFor(x.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    ActivationForwardElements(f, x, begin, end, y);
  });
}

void ActivationBackwardCpu(ThreadPool& pool, Activation f, const ConstView& saved,
                           const ConstView& dy, const View& dx) {
  pool.ParallelFor(saved.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    ActivationBackwardElements(f, saved, dy, begin, end, dx);
  });
}

struct Row {
  const char *forward, *backward;        // The operations' names.
  const char* saved;                     // The name of what backward reads.
  double forward_flops, backward_flops;  // An element.
};
constexpr Row kRows[kActivations] = {
    {"gelu_forward", "gelu_backward", "x", kGeluForwardFlops, kGeluBackwardFlops},
    {"relu_forward", "relu_backward", "y", 1, 1},
    {"sigmoid_forward", "sigmoid_backward", "y", 18, 3},
    {"gelu_exact_forward", "gelu_exact_backward", "x", 42, 46},
};
const Row& RowOf(Activation f) { return kRows[static_cast<int>(f)]; }

}  // namespace

void ActivationForwardElements(Activation f, const ConstView& x, int64_t begin, int64_t end,
                               const View& y) {
  if (x.dtype == DType::kBFloat16) {
    return KernelsOf(f).forward_bf16(x.As<uint16_t>() + begin, end - begin,
                                     y.As<uint16_t>() + begin);
  }
  FloatPiece in, out;
  ForEachPiece(x.dtype, begin, end, [&](int64_t at, int64_t n) {
    float* to = FloatsToWrite(y, at, out);
    KernelsOf(f).forward(ReadFloats(x, at, n, in), n, to);
    WriteFloats(to, n, y, at);
  });
}

void ActivationBackwardElements(Activation f, const ConstView& saved, const ConstView& dy,
                                int64_t begin, int64_t end, const View& dx) {
  if (saved.dtype == DType::kBFloat16) {
    return KernelsOf(f).backward_bf16(saved.As<uint16_t>() + begin, dy.As<uint16_t>() + begin,
                                      end - begin, dx.As<uint16_t>() + begin);
  }
  FloatPiece in, gradient, out;
  ForEachPiece(saved.dtype, begin, end, [&](int64_t at, int64_t n) {
    float* to = FloatsToWrite(dx, at, out);
    KernelsOf(f).backward(ReadFloats(saved, at, n, in), ReadFloats(dy, at, n, gradient), n, to);
    WriteFloats(to, n, dx, at);
  });
}

void ActivationForward(Stream& stream, Activation f, ConstView x, View y) {
  const Row& row = RowOf(f);
  const Arguments args(row.forward);
  const int64_t n = x.NumElements();
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckElements("x", x, x.dtype, n);
  args.CheckElements("y", y, x.dtype, n);
  args.CheckSameOrDisjoint("y", y, "x", x);
  const Cost cost{.flops = row.forward_flops * static_cast<double>(n),
                  .bytes_read = static_cast<double>(x.bytes()),
                  .bytes_written = static_cast<double>(y.bytes())};
  stream.Enqueue({row.forward,
                  {x},
                  {y},
                  {cost},
                  {.cpu = OnCpu(ActivationForwardCpu, f, x, y),
                   .cuda = OnCuda(ActivationForwardCuda, f, x, y)}});
}

void ActivationBackward(Stream& stream, Activation f, ConstView saved, ConstView dy, View dx) {
  const Row& row = RowOf(f);
  const Arguments args(row.backward);
  const int64_t n = saved.NumElements();
  args.CheckDType(row.saved, saved.dtype, kFloatDTypes);
  args.CheckElements(row.saved, saved, saved.dtype, n);
  args.CheckElements("dy", dy, saved.dtype, n);
  args.CheckElements("dx", dx, saved.dtype, n);
  args.CheckSameOrDisjoint("dx", dx, "dy", dy);
  args.CheckSameOrDisjoint("dx", dx, row.saved, saved);
  const Cost cost{.flops = row.backward_flops * static_cast<double>(n),
                  .bytes_read = static_cast<double>(saved.bytes() + dy.bytes()),
                  .bytes_written = static_cast<double>(dx.bytes())};
  stream.Enqueue({row.backward,
                  {saved, dy},
                  {dx},
                  {cost},
                  {.cpu = OnCpu(ActivationBackwardCpu, f, saved, dy, dx),
                   .cuda = OnCuda(ActivationBackwardCuda, f, saved, dy, dx)}});
}

}  // namespace fsdp
