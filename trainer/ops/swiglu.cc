#include "trainer/ops/swiglu.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/swiglu_cpu.h"
#include "trainer/ops/cuda/swiglu_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

void CheckOperands(const Arguments& args, const ConstView& x, const char* y_name,
                   const ConstView& y) {
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank(y_name, y, x.dtype, 2);
  args.Check("x", x, x.dtype, {y.shape[0], 2 * y.shape[1]});
}

// `flops`: an element of y.
void Forward(const char* op, double flops, Stream& stream, const ConstView& x, const View& y,
             DeviceKernels kernels) {
  const Arguments args(op);
  CheckOperands(args, x, "y", y);
  args.CheckDisjoint("y", y, "x", x);
  const Cost cost{.flops = flops * static_cast<double>(y.NumElements()),
                  .bytes_read = static_cast<double>(x.bytes()),
                  .bytes_written = static_cast<double>(y.bytes())};
  stream.Enqueue({op, {x}, {y}, {cost}, std::move(kernels)});
}

void Backward(const char* op, double flops, Stream& stream, const ConstView& x, const ConstView& dy,
              const View& dx, DeviceKernels kernels) {
  const Arguments args(op);
  CheckOperands(args, x, "dy", dy);
  args.Check("dx", dx, x.dtype, x.shape);
  args.CheckSameOrDisjoint("dx", dx, "x", x);
  args.CheckDisjoint("dx", dx, "dy", dy);
  const Cost cost{.flops = flops * static_cast<double>(dy.NumElements()),
                  .bytes_read = static_cast<double>(x.bytes() + dy.bytes()),
                  .bytes_written = static_cast<double>(dx.bytes())};
  stream.Enqueue({op, {x, dy}, {dx}, {cost}, std::move(kernels)});
}

}  // namespace

void SwigluForward(Stream& stream, ConstView x, View y) {
  Forward("swiglu_forward", 20, stream, x, y,
          {.cpu = OnCpu(SwigluForwardCpu, x, y), .cuda = OnCuda(SwigluForwardCuda, x, y)});
}

void SwigluBackward(Stream& stream, ConstView x, ConstView dy, View dx) {
  Backward(
      "swiglu_backward", 26, stream, x, dy, dx,
      {.cpu = OnCpu(SwigluBackwardCpu, x, dy, dx), .cuda = OnCuda(SwigluBackwardCuda, x, dy, dx)});
}

void GatedGeluForward(Stream& stream, ConstView x, View y) {
  Forward("gated_gelu_forward", 26, stream, x, y,
          {.cpu = OnCpu(GatedGeluForwardCpu, x, y), .cuda = OnCuda(GatedGeluForwardCuda, x, y)});
}

void GatedGeluBackward(Stream& stream, ConstView x, ConstView dy, View dx) {
  Backward("gated_gelu_backward", 39, stream, x, dy, dx,
           {.cpu = OnCpu(GatedGeluBackwardCpu, x, dy, dx),
            .cuda = OnCuda(GatedGeluBackwardCuda, x, dy, dx)});
}

}  // namespace fsdp
