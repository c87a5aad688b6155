#include "trainer/ops/swiglu.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/swiglu_cpu.h"
#include "trainer/ops/cuda/swiglu_cuda.h"

namespace fsdp {
namespace {

void CheckOperands(const Arguments& args, const ConstView& x, const char* y_name,
                   const ConstView& y) {
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank(y_name, y, x.dtype, 2);
  args.Check("x", x, x.dtype, {y.shape[0], 2 * y.shape[1]});
}

}  // namespace

void SwigluForward(Stream& stream, ConstView x, View y) {
  constexpr const char* kOp = "swiglu_forward";
  const Arguments args(kOp);
  CheckOperands(args, x, "y", y);
  args.CheckDisjoint("y", y, "x", x);
  const double n = static_cast<double>(y.NumElements());
  const Cost cost{.flops = 20 * n,
                  .bytes_read = static_cast<double>(x.bytes()),
                  .bytes_written = static_cast<double>(y.bytes())};
  DeviceKernels kernels{.cpu = OnCpu(SwigluForwardCpu, x, y),
                        .cuda = OnCuda(SwigluForwardCuda, x, y)};
  stream.Enqueue({kOp, {x}, {y}, {cost}, std::move(kernels)});
}

void SwigluBackward(Stream& stream, ConstView x, ConstView dy, View dx) {
  constexpr const char* kOp = "swiglu_backward";
  const Arguments args(kOp);
  CheckOperands(args, x, "dy", dy);
  args.Check("dx", dx, x.dtype, x.shape);
  args.CheckSameOrDisjoint("dx", dx, "x", x);
  args.CheckDisjoint("dx", dx, "dy", dy);
  const double n = static_cast<double>(dy.NumElements());
  const Cost cost{.flops = 26 * n,
                  .bytes_read = static_cast<double>(x.bytes() + dy.bytes()),
                  .bytes_written = static_cast<double>(dx.bytes())};
  DeviceKernels kernels{.cpu = OnCpu(SwigluBackwardCpu, x, dy, dx),
                        .cuda = OnCuda(SwigluBackwardCuda, x, dy, dx)};
  stream.Enqueue({kOp, {x, dy}, {dx}, {cost}, std::move(kernels)});
}

}  // namespace fsdp
