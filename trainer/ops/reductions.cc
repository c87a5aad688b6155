#include "trainer/ops/reductions.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/reductions_cpu.h"

namespace fsdp {

void SumOfSquares(Stream& stream, ConstView x, View out) {
  constexpr const char* kOp = "sum_of_squares";
  const Arguments args(kOp);
  const int64_t n = x.NumElements();
  args.CheckElements("x", x, DType::kFloat32, n);
  args.Check("out", out, DType::kFloat32, {1});
  args.CheckDisjoint("out", out, "x", x);
  const Cost cost{.flops = 2.0 * n,
                  .bytes_read = static_cast<double>(x.bytes() + out.bytes()),
                  .bytes_written = static_cast<double>(out.bytes())};
  stream.Enqueue({kOp, {x}, {out}, {cost}, {OnCpu(SumOfSquaresCpu, x, out)}});
}

void ClipCoefficient(Stream& stream, ConstView sum_of_squares, ConstView mean_scale, float max_norm,
                     View norm, View coefficient) {
  constexpr const char* kOp = "clip_coefficient";
  const Arguments args(kOp);
  args.Check("sum_of_squares", sum_of_squares, DType::kFloat32, {1});
  args.Check("mean_scale", mean_scale, DType::kFloat32, {1});
  args.Check("norm", norm, DType::kFloat32, {1});
  args.Check("coefficient", coefficient, DType::kFloat32, {1});
  args.CheckDisjoint("coefficient", coefficient, "norm", norm);
  args.Require(max_norm >= 0, "max_norm, want >= 0");
  const Cost cost{.flops = 6,
                  .bytes_read = static_cast<double>(sum_of_squares.bytes() + mean_scale.bytes()),
                  .bytes_written = static_cast<double>(norm.bytes() + coefficient.bytes())};
  CpuKernel cpu =
      OnCpu(ClipCoefficientCpu, sum_of_squares, mean_scale, max_norm, norm, coefficient);
  stream.Enqueue(
      {kOp, {sum_of_squares, mean_scale}, {norm, coefficient}, {cost}, {std::move(cpu)}});
}

}  // namespace fsdp
