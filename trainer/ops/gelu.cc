#include "trainer/ops/gelu.h"

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/gelu_cpu.h"
#include "trainer/ops/cuda/gelu_cuda.h"

namespace fsdp {

void GeluForward(Stream& stream, ConstView x, View y) {
  constexpr const char* kOp = "gelu_forward";
  const Arguments args(kOp);
  const int64_t n = x.NumElements();
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckElements("x", x, x.dtype, n);
  args.CheckElements("y", y, x.dtype, n);
  args.CheckSameOrDisjoint("y", y, "x", x);
  const Cost cost{.flops = kGeluForwardFlops * n,
                  .bytes_read = static_cast<double>(x.bytes()),
                  .bytes_written = static_cast<double>(y.bytes())};
  stream.Enqueue({kOp,
                  {x},
                  {y},
                  {cost},
                  {.cpu = OnCpu(GeluForwardCpu, x, y), .cuda = OnCuda(GeluForwardCuda, x, y)}});
}

void GeluBackward(Stream& stream, ConstView x, ConstView dy, View dx) {
  constexpr const char* kOp = "gelu_backward";
  const Arguments args(kOp);
  const int64_t n = x.NumElements();
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckElements("x", x, x.dtype, n);
  args.CheckElements("dy", dy, x.dtype, n);
  args.CheckElements("dx", dx, x.dtype, n);
  args.CheckSameOrDisjoint("dx", dx, "dy", dy);
  args.CheckSameOrDisjoint("dx", dx, "x", x);
  const Cost cost{.flops = kGeluBackwardFlops * n,
                  .bytes_read = static_cast<double>(x.bytes() + dy.bytes()),
                  .bytes_written = static_cast<double>(dx.bytes())};
  stream.Enqueue(
      {kOp,
       {x, dy},
       {dx},
       {cost},
       {.cpu = OnCpu(GeluBackwardCpu, x, dy, dx), .cuda = OnCuda(GeluBackwardCuda, x, dy, dx)}});
}

}  // namespace fsdp
