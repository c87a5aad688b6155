#include "trainer/ops/rms_norm.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/rms_norm_cpu.h"
#include "trainer/ops/cuda/rms_norm_cuda.h"
#include "trainer/ops/norm_rows.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

template <typename AnyView>
NormRows<AnyView> Of(const AnyView& matrix) {
  return {matrix, 0, matrix.shape[1]};
}
template <typename AnyView>
NormRows<AnyView> Of(const BasicHeads<AnyView>& heads) {
  return {heads.tensor, heads.begin(), heads.stride()};
}

struct Sizes {
  NormShape shape;
  Shape r;
};

Sizes CheckMatrix(const Arguments& args, const ConstView& x) {
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank("x", x, x.dtype, 2);
  args.Require(x.shape[1] > 0, "x has no columns");
  return {{x.shape[0], 1, x.shape[1]}, Shape{x.shape[0]}};
}

Sizes CheckHeads(const Arguments& args, const ConstHeads& x) {
  args.CheckDType("x", x.tensor.dtype, kFloatDTypes);
  fsdp::CheckHeads(args, "x", x, x.tensor.dtype);
  const Shape& s = x.tensor.shape;
  args.Require(s[3] > 0, "x has no columns");
  args.Require(x.count > 0, "x has no heads");
  return {{s[0] * s[1], x.count, s[3]}, Shape{s[0], s[1], x.count}};
}

// The same numbers of heads and of rows.
void CheckLike(const Arguments& args, const char* name, const ConstHeads& y, const ConstHeads& x) {
  fsdp::CheckHeads(args, name, y, x.tensor.dtype);
  const Shape& s = x.tensor.shape;
  args.Check(name, y.tensor, x.tensor.dtype, {s[0], s[1], y.tensor.shape[2], s[3]});
  if (y.count != x.count) {
    args.Fail(std::string(name) + " has " + std::to_string(y.count) + " heads, want " +
              std::to_string(x.count));
  }
}

double Elements(const NormShape& s) { return static_cast<double>(s.rows() * s.cols); }

// Bytes of the rows. Elements between the heads of a tensor do not count.
double BytesOf(const ConstView& view, const NormShape& s) {
  return Elements(s) * static_cast<double>(SizeOf(view.dtype));
}

void Forward(Stream& stream, const Arguments& args, const char* op, const Sizes& sizes,
             const NormRows<ConstView>& x, ConstView w, float eps, const NormRows<View>& y,
             View r) {
  const NormShape shape = sizes.shape;
  args.CheckWeight("w", w, x.tensor.dtype, {shape.cols});
  args.Check("r", r, DType::kFloat32, sizes.r);
  args.CheckDisjoint("r", r, "x", x.tensor);
  args.CheckDisjoint("r", r, "y", y.tensor);
  args.CheckDisjoint("y", y.tensor, "w", w);
  args.Require(eps >= 0, "eps is negative");
  const double n = Elements(shape);
  const Cost cost{.flops = 4 * n,
                  .bytes_read = BytesOf(x.tensor, shape) + static_cast<double>(w.bytes()),
                  .bytes_written = BytesOf(y.tensor, shape) + static_cast<double>(r.bytes())};
  DeviceKernels kernels{.cpu = OnCpu(RmsNormForwardCpu, shape, x, w, eps, y, r),
                        .cuda = OnCuda(RmsNormForwardCuda, shape, x, w, eps, y, r)};
  const OnGpu gpu{.launches = shape.rows() > 0};
  stream.Enqueue({op, {x.tensor, w}, {y.tensor, r}, {{cost, gpu}}, std::move(kernels)});
}

void Backward(Stream& stream, const Arguments& args, const char* op, const Sizes& sizes,
              const NormRows<ConstView>& x, ConstView w, ConstView r, const NormRows<ConstView>& dy,
              bool add, const NormRows<View>& dx, std::optional<View> dw, View workspace) {
  const NormShape shape = sizes.shape;
  args.CheckWeight("w", w, x.tensor.dtype, {shape.cols});
  args.Check("r", r, DType::kFloat32, sizes.r);
  if (dw) args.CheckGradient("dw", *dw, {shape.cols});
  args.CheckWorkspace(workspace,
                      RmsNormBackwardWorkspaceBytes(shape.rows(), shape.cols, x.tensor.dtype,
                                                    stream.device().kernel_type()));
  args.CheckDisjoint("dx", dx.tensor, "x", x.tensor);
  const double sum = dw ? static_cast<double>(dw->bytes()) : 0,
               dx_bytes = BytesOf(dx.tensor, shape);
  const Cost cost{.flops = 10 * Elements(shape),
                  .bytes_read = BytesOf(x.tensor, shape) + BytesOf(dy.tensor, shape) +
                                (add ? dx_bytes : 0) + static_cast<double>(w.bytes() + r.bytes()) +
                                sum,
                  .bytes_written = dx_bytes + sum};
  const int64_t blocks = NormBlocks(shape.rows(), stream.device().kernel_type());
  OnGpu gpu;
  if (dw) {  // Sums of blocks of rows, and a launch that adds them up.
    gpu = {.launches = 2, .extra_bytes = 2.0 * sizeof(float) * blocks * shape.cols};
  }
  Operation operation{op, {x.tensor, w, r, dy.tensor}, {dx.tensor, workspace}, {{cost, gpu}}};
  if (dw) operation.writes.push_back(*dw);
  operation.kernels = {
      .cpu = OnCpu(RmsNormBackwardCpu, shape, x, w, r, dy, blocks, add, dx, dw, workspace),
      .cuda = OnCuda(RmsNormBackwardCuda, shape, x, w, r, dy, blocks, add, dx, dw, workspace)};
  stream.Enqueue(std::move(operation));
}

constexpr const char* kForward = "rms_norm_forward";
constexpr const char* kBackward = "rms_norm_backward";

}  // namespace

int64_t RmsNormBackwardWorkspaceBytes(int64_t rows, int64_t cols, DType dtype, DeviceType device) {
  Arguments(kBackward).CheckHasKernels("x", dtype, kFloatDTypes, device);
  return NormBlocks(rows, device) * cols * static_cast<int64_t>(sizeof(float));
}

void RmsNormForward(Stream& stream, ConstView x, ConstView w, float eps, View y, View r) {
  const Arguments args(kForward);
  const Sizes sizes = CheckMatrix(args, x);
  args.Check("y", y, x.dtype, x.shape);
  args.CheckSameOrDisjoint("y", y, "x", x);
  Forward(stream, args, kForward, sizes, Of(x), w, eps, Of(y), r);
}

void RmsNormForward(Stream& stream, const ConstHeads& x, ConstView w, float eps, const Heads& y,
                    View r) {
  const Arguments args(kForward);
  const Sizes sizes = CheckHeads(args, x);
  CheckLike(args, "y", y, x);
  args.CheckSameOrDisjoint("y", y.tensor, "x", x.tensor);
  Forward(stream, args, kForward, sizes, Of(x), w, eps, Of(y), r);
}

void RmsNormBackward(Stream& stream, ConstView x, ConstView w, ConstView r, ConstView dy,
                     RmsNormDx mode, View dx, std::optional<View> dw, View workspace) {
  const Arguments args(kBackward);
  const Sizes sizes = CheckMatrix(args, x);
  args.Check("dy", dy, x.dtype, x.shape);
  args.Check("dx", dx, x.dtype, x.shape);
  args.CheckSameOrDisjoint("dx", dx, "dy", dy);
  Backward(stream, args, kBackward, sizes, Of(x), w, r, Of(dy), mode == RmsNormDx::kAdd, Of(dx), dw,
           workspace);
}

void RmsNormBackward(Stream& stream, const ConstHeads& x, ConstView w, ConstView r,
                     const ConstHeads& dy, const Heads& dx, std::optional<View> dw,
                     View workspace) {
  const Arguments args(kBackward);
  const Sizes sizes = CheckHeads(args, x);
  CheckLike(args, "dy", dy, x);
  CheckLike(args, "dx", dx, x);
  args.CheckSameOrDisjoint("dx", dx.tensor, "dy", dy.tensor);
  Backward(stream, args, kBackward, sizes, Of(x), w, r, Of(dy), false, Of(dx), dw, workspace);
}

}  // namespace fsdp
