#include "trainer/ops/convolution.h"

#include <algorithm>
#include <string>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/convolution_backends.h"
#include "trainer/ops/cudnn/convolution_cudnn.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

using Pass = ConvolutionCall::Pass;

Shape ImagesOf(const ConvolutionShape& s) { return {s.samples, s.height, s.width, s.in}; }
Shape ResultsOf(const ConvolutionShape& s) {
  return {s.samples, s.out_height(), s.out_width(), s.out};
}

// The pixels that a pointwise kernel looks at, side by side.
int64_t LookedAtBytes(const ConvolutionShape& s, DType x) {
  return s.is_pointwise() && !s.is_product() ? s.out_pixels() * s.in * SizeOf(x) : 0;
}

// All of an operand's dtypes and shapes.
ConvolutionShape CheckOperands(const char* name, const ConstView& x, const ConstView& w,
                               const ConvolutionWindow& window) {
  const Arguments args(name);
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank("x", x, x.dtype, 4);
  args.CheckRank("w", w, w.dtype, 4);
  args.CheckWeight("w", w, x.dtype, w.shape);
  return ShapeOfConvolution(name, x.shape, w.shape, window);
}

// There is one product per group. On a GPU that is one kernel, ours or a library's. Where pixels
// are picked out, one more kernel reads and writes them.
KernelCost CostOf(const ConvolutionShape& s, Product product, const Cost& rest, DType x) {
  product.count = s.window.groups;
  KernelCost cost(product, rest, 2 * static_cast<double>(LookedAtBytes(s, x)));
  const bool picks = LookedAtBytes(s, x) > 0;
  cost.gpu.launches = product.m > 0 && product.n > 0 ? 1 + (picks ? 1 : 0) : 0;
  return cost;
}

// The same of cuDNN's kernel, with ours that puts the weights into another order before or behind
// it. The bytes that a plan moves in its own workspace are left out: they depend on the plan.
KernelCost CostByCudnn(const ConvolutionCall& call, const Product& product, const Cost& rest) {
  KernelCost cost = CostOf(call.shape, product, rest, call.x);
  cost.gpu = {.launches = 2,
              .extra_bytes = 2 * static_cast<double>(CudnnWorkspaceOf(call).weights)};
  return cost;
}

// Whether cuDNN computes this call for these images, which it wants at multiples of 16 bytes.
bool ByCudnn(const ConvolutionBackend& backend, const ConvolutionCall& call, const ConstView& a,
             const ConstView& b) {
  const auto is_aligned = [](const ConstView& view) {
    return reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
  };
  return TakenByCudnn(backend, call) && is_aligned(a) && is_aligned(b);
}

int64_t CudnnBytes(const ConvolutionBackend& backend, const ConvolutionCall& call) {
  return TakenByCudnn(backend, call) ? CudnnWorkspaceOf(call).bytes() : 0;
}

// `dx_by_cudnn`, `dw_by_cudnn`: the gradients that cuDNN computes.
void BackwardOnCuda(CudaStreamHandle stream, const ConvolutionShape& s, const ConstView& x,
                    const ConstView& w, const ConstView& dy, const std::optional<View>& dx,
                    const std::optional<View>& dw, const View& workspace, bool dx_by_cudnn,
                    bool dw_by_cudnn) {
  if (dx_by_cudnn) ConvolutionDxCudnn(stream, s, w, dy, *dx, workspace);
  if (dw_by_cudnn) ConvolutionDwCudnn(stream, s, x, dy, *dw, workspace);
  const std::optional<View> own_dx = dx_by_cudnn ? std::nullopt : dx;
  const std::optional<View> own_dw = dw_by_cudnn ? std::nullopt : dw;
  if (own_dx || own_dw) ConvolutionBackwardCuda(stream, s, x, w, dy, own_dx, own_dw, workspace);
}

}  // namespace

ConvolutionShape ShapeOfConvolution(const char* name, const Shape& x, const Shape& w,
                                    const ConvolutionWindow& window) {
  const Arguments args(name);
  args.Require(x.rank() == 4, "x is not [samples, height, width, channels]");
  args.Require(w.rank() == 4, "w is not [out, in / groups, height, width]");
  args.Require(window.stride >= 1, "the stride is not positive");
  args.Require(window.padding_height >= 0 && window.padding_width >= 0, "padding is negative");
  args.Require(window.groups >= 1, "there are no groups");
  const ConvolutionShape s{x[0], x[1], x[2], x[3], w[0], w[2], w[3], window};
  if (s.in % window.groups != 0 || s.out % window.groups != 0 || w[1] != s.group_in()) {
    args.Fail("w is " + w.ToString() + ", for " + std::to_string(s.in) + " channels in " +
              std::to_string(window.groups) + " groups");
  }
  if (s.taps() < 1 || s.out_height() < 1 || s.out_width() < 1) {
    args.Fail("a kernel of " + std::to_string(s.kernel_height) + " x " +
              std::to_string(s.kernel_width) + " does not fit into x, which is " + x.ToString());
  }
  return s;
}

int64_t ConvolutionForwardWorkspaceBytes(const ConvolutionShape& s, DType x, DType w,
                                         DeviceType device, const ConvolutionBackend& backend) {
  Arguments("convolution").CheckHasKernels("x", x, kFloatDTypes, device);
  if (s.is_pointwise()) return LookedAtBytes(s, x);
  if (device == DeviceType::kCuda) return CudnnBytes(backend, {Pass::kForward, s, x, w});
  return s.weights() * SizeOf(w);
}

int64_t ConvolutionBackwardWorkspaceBytes(const ConvolutionShape& s, DType x, DType w, bool dx,
                                          bool dw, DeviceType device,
                                          const ConvolutionBackend& backend) {
  Arguments("convolution").CheckHasKernels("x", x, kFloatDTypes, device);
  if (s.is_pointwise()) return LookedAtBytes(s, x);
  const bool on_cuda = device == DeviceType::kCuda;
  const int64_t slices = on_cuda ? s.WeightSlicesOnCuda() : s.WeightSlicesOnCpu();
  const int64_t for_dw = dw ? slices * s.weights() * int64_t{sizeof(float)} : 0;
  if (!on_cuda) return std::max(for_dw, dx ? s.weights() * SizeOf(w) : 0);
  // Operands that cuDNN does not take, for where they begin, go to our own kernels.
  return std::max({for_dw, dx ? CudnnBytes(backend, {Pass::kDx, s, x, w}) : 0,
                   dw ? CudnnBytes(backend, {Pass::kDw, s, x, w}) : 0});
}

void ConvolutionForward(Stream& stream, ConstView x, ConstView w, const ConvolutionWindow& window,
                        View y, View workspace, const ConvolutionBackend& backend) {
  constexpr const char* kOp = "convolution_forward";
  const Arguments args(kOp);
  const ConvolutionShape s = CheckOperands(kOp, x, w, window);
  args.Check("y", y, x.dtype, ResultsOf(s));
  args.CheckDisjoint("y", y, "x", x);
  args.CheckDisjoint("y", y, "w", w);
  const int64_t bytes =
      ConvolutionForwardWorkspaceBytes(s, x.dtype, w.dtype, stream.device().kernel_type(), backend);
  args.CheckWorkspace(workspace, bytes);
  Operation operation{kOp, {x, w}, {y}, {}};
  if (bytes > 0) {
    for (const auto& [name, view] : {std::pair{"x", x}, {"w", w}, {"y", ConstView(y)}}) {
      args.CheckDisjoint("workspace", workspace, name, view);
    }
    operation.writes.push_back(workspace);
  }
  const Product product{.name = "forward",
                        .m = s.out_pixels(),
                        .n = s.group_out(),
                        .k = s.terms(),
                        .b_transposed = true,
                        .dtype = w.dtype,
                        .result = y.dtype};
  const Cost rest{.bytes_read = static_cast<double>(x.bytes() + w.bytes()),
                  .bytes_written = static_cast<double>(y.bytes())};
  const ConvolutionCall call{Pass::kForward, s, x.dtype, w.dtype};
  const bool by_cudnn = ByCudnn(backend, call, x, y);
  operation.costs = {by_cudnn ? CostByCudnn(call, product, rest)
                              : CostOf(s, product, rest, x.dtype)};
  operation.kernels = {.cpu = OnCpu(ConvolutionForwardCpu, s, x, w, y, workspace),
                       .cuda = OnCuda(by_cudnn ? ConvolutionForwardCudnn : ConvolutionForwardCuda,
                                      s, x, w, y, workspace)};
  stream.Enqueue(std::move(operation));
}

void ConvolutionBackward(Stream& stream, ConstView x, ConstView w, const ConvolutionWindow& window,
                         ConstView dy, std::optional<View> dx, std::optional<View> dw,
                         View workspace, const ConvolutionBackend& backend) {
  constexpr const char* kOp = "convolution_backward";
  const Arguments args(kOp);
  const ConvolutionShape s = CheckOperands(kOp, x, w, window);
  args.Check("dy", dy, x.dtype, ResultsOf(s));
  args.Require(dx || dw, "nothing to compute: dx and dw are both left out");
  const int64_t bytes = ConvolutionBackwardWorkspaceBytes(
      s, x.dtype, w.dtype, dx.has_value(), dw.has_value(), stream.device().kernel_type(), backend);
  args.CheckWorkspace(workspace, bytes);
  Operation operation{kOp, {dy}, {}, {}};
  const auto check = [&](const char* name, const View& result) {
    for (const auto& [other, view] : {std::pair{"x", x}, {"w", w}, {"dy", dy}}) {
      args.CheckDisjoint(name, result, other, view);
    }
  };
  const double dy_bytes = static_cast<double>(dy.bytes());
  const ConvolutionCall dx_call{Pass::kDx, s, x.dtype, w.dtype};
  const ConvolutionCall dw_call{Pass::kDw, s, x.dtype, w.dtype};
  const bool dx_by_cudnn = dx && ByCudnn(backend, dx_call, dy, *dx);
  const bool dw_by_cudnn = dw && ByCudnn(backend, dw_call, dy, x);
  if (dx) {
    args.Check("dx", *dx, x.dtype, ImagesOf(s));
    check("dx", *dx);
    operation.reads.push_back(w);
    operation.writes.push_back(*dx);
    // By the pixels of dy: every tap reads each of them once, which is as many FLOPs as forward
    // has.
    const Product product{.name = "dx",
                          .m = s.out_pixels(),
                          .n = s.terms(),
                          .k = s.group_out(),
                          .dtype = w.dtype,
                          .result = x.dtype};
    const Cost rest{.bytes_read = dy_bytes + static_cast<double>(w.bytes()),
                    .bytes_written = static_cast<double>(dx->bytes())};
    operation.costs.push_back(dx_by_cudnn ? CostByCudnn(dx_call, product, rest)
                                          : CostOf(s, product, rest, x.dtype));
  }
  if (dw) {
    args.CheckGradient("dw", *dw, w.shape);
    check("dw", *dw);
    if (dx) args.CheckDisjoint("dw", *dw, "dx", *dx);
    operation.reads.push_back(x);
    operation.writes.push_back(*dw);
    const Product product{.name = "dw",
                          .m = s.group_out(),
                          .n = s.terms(),
                          .k = s.out_pixels(),
                          .a_transposed = true,
                          .adds = true,
                          .dtype = dy.dtype,
                          .result = dw->dtype};
    const Cost rest{
        .bytes_read = (dx ? 0 : dy_bytes) + static_cast<double>(x.bytes() + dw->bytes()),
        .bytes_written = static_cast<double>(dw->bytes())};
    KernelCost cost =
        dw_by_cudnn ? CostByCudnn(dw_call, product, rest) : CostOf(s, product, rest, x.dtype);
    if (dx) cost.gpu.extra_bytes += dy_bytes;
    if (!dw_by_cudnn && !s.is_pointwise() && cost.gpu.launches > 0) {  // The parts are added up.
      ++cost.gpu.launches;
      cost.gpu.extra_bytes +=
          2 * static_cast<double>(s.WeightSlicesOnCuda() * s.weights() * int64_t{sizeof(float)});
    }
    operation.costs.push_back(cost);
  }
  if (bytes > 0) {
    check("workspace", workspace);
    if (dx) args.CheckDisjoint("workspace", workspace, "dx", *dx);
    if (dw) args.CheckDisjoint("workspace", workspace, "dw", *dw);
    operation.writes.push_back(workspace);
  }
  operation.kernels = {.cpu = OnCpu(ConvolutionBackwardCpu, s, x, w, dy, dx, dw, workspace),
                       .cuda = ConvolutionBackwardCuda == nullptr
                                   ? nullptr
                                   : OnCuda(BackwardOnCuda, s, x, w, dy, dx, dw, workspace,
                                            dx_by_cudnn, dw_by_cudnn)};
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
