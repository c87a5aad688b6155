#include "trainer/ops/image_tokens.h"

#include <string>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/image_tokens_cpu.h"
#include "trainer/ops/cuda/image_tokens_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// Rows of a sample.
int64_t RowsOf(const Arguments& arguments, const char* name, const ConstView& matrix,
               int64_t samples) {
  const int64_t rows = matrix.shape[0];
  if (samples < 1 || rows == 0 || rows % samples != 0) {
    arguments.Fail(std::string(name) + " has " + std::to_string(rows) + " rows, for " +
                   std::to_string(samples) + " samples");
  }
  return rows / samples;
}

}  // namespace

void CutPatches(Stream& stream, ConstView pixels, int64_t patch, PatchOrder order, View patches) {
  constexpr const char* kOp = "cut_patches";
  const Arguments args(kOp);
  args.CheckRank("pixels", pixels, DType::kFloat32, 4);
  args.CheckDType("patches", patches.dtype, kFloatDTypes);
  const Shape& image = pixels.shape;
  if (patch < 1 || image[1] % patch != 0 || image[2] % patch != 0) {
    args.Fail("pixels are " + image.ToString() + ", whose sides " + std::to_string(patch) +
              " does not divide");
  }
  args.Check("patches", patches, patches.dtype,
             {image[0] * (image[1] / patch) * (image[2] / patch), patch * patch * image[3]});
  args.CheckDisjoint("patches", patches, "pixels", pixels);
  const Cost cost{.bytes_read = static_cast<double>(pixels.bytes()),
                  .bytes_written = static_cast<double>(patches.bytes())};
  stream.Enqueue({kOp,
                  {pixels},
                  {patches},
                  {cost},
                  {OnCpu(CutPatchesCpu, pixels, patch, order, patches),
                   OnCuda(CutPatchesCuda, pixels, patch, order, patches)}});
}

void JoinTokensForward(Stream& stream, ConstView x, ConstView first, ConstView positions,
                       int64_t samples, View y) {
  constexpr const char* kOp = "join_tokens_forward";
  const Arguments args(kOp);
  args.CheckDType("y", y.dtype, kFloatDTypes);
  args.CheckRank("x", x, y.dtype, 2);
  const int64_t cols = x.shape[1], all = 1 + RowsOf(args, "x", x, samples);
  args.CheckWeight("first", first, y.dtype, {cols});
  args.CheckRank("positions", positions, positions.dtype, 2);
  args.CheckWeight("positions", positions, y.dtype, {all, cols});
  args.Check("y", y, y.dtype, {samples * all, cols});
  args.CheckDisjoint("y", y, "x", x);
  args.CheckDisjoint("y", y, "first", first);
  args.CheckDisjoint("y", y, "positions", positions);
  const Cost cost{.flops = static_cast<double>(y.NumElements()),
                  .bytes_read = static_cast<double>(x.bytes() + first.bytes() + positions.bytes()),
                  .bytes_written = static_cast<double>(y.bytes())};
  stream.Enqueue({kOp,
                  {x, first, positions},
                  {y},
                  {cost},
                  {OnCpu(JoinTokensForwardCpu, x, first, positions, samples, y),
                   OnCuda(JoinTokensForwardCuda, x, first, positions, samples, y)}});
}

void JoinTokensBackward(Stream& stream, ConstView dy, int64_t samples, View dx,
                        std::optional<View> dfirst, std::optional<View> dpositions) {
  constexpr const char* kOp = "join_tokens_backward";
  const Arguments args(kOp);
  args.CheckDType("dy", dy.dtype, kFloatDTypes);
  args.CheckRank("dy", dy, dy.dtype, 2);
  const int64_t cols = dy.shape[1], all = RowsOf(args, "dy", dy, samples);
  args.Check("dx", dx, dy.dtype, {dy.shape[0] - samples, cols});
  args.CheckDisjoint("dx", dx, "dy", dy);
  Operation operation{kOp, {dy}, {dx}, {}};
  Cost cost{.bytes_read = static_cast<double>(dx.bytes()),
            .bytes_written = static_cast<double>(dx.bytes())};
  OnGpu gpu{.launches = dx.NumElements() > 0};  // One more a sum.
  const auto add = [&](const char* name, const View& sums) {
    args.CheckDisjoint(name, sums, "dy", dy);
    args.CheckDisjoint(name, sums, "dx", dx);
    operation.writes.push_back(sums);
    const double elements = static_cast<double>(sums.NumElements()) * static_cast<double>(samples);
    cost += Cost{.flops = elements,
                 .bytes_read = static_cast<double>(sums.bytes()),
                 .bytes_written = static_cast<double>(sums.bytes())};
    gpu.extra_bytes += elements * static_cast<double>(SizeOf(dy.dtype));
    ++gpu.launches;
  };
  if (dfirst) {
    args.CheckGradient("dfirst", *dfirst, {cols});
    add("dfirst", *dfirst);
  }
  if (dpositions) {
    args.CheckRank("dpositions", *dpositions, dpositions->dtype, 2);
    args.CheckGradient("dpositions", *dpositions, {all, cols});
    add("dpositions", *dpositions);
  }
  if (dfirst && dpositions) args.CheckDisjoint("dfirst", *dfirst, "dpositions", *dpositions);
  operation.costs = {{cost, gpu}};
  operation.kernels = {OnCpu(JoinTokensBackwardCpu, dy, samples, dx, dfirst, dpositions),
                       OnCuda(JoinTokensBackwardCuda, dy, samples, dx, dfirst, dpositions)};
  stream.Enqueue(std::move(operation));
}

void FirstTokensForward(Stream& stream, ConstView x, View y) {
  constexpr const char* kOp = "first_tokens_forward";
  const Arguments args(kOp);
  args.CheckDType("y", y.dtype, kFloatDTypes);
  args.CheckRank("y", y, y.dtype, 2);
  args.CheckRank("x", x, y.dtype, 2);
  args.Check("x", x, y.dtype, {x.shape[0], y.shape[1]});
  RowsOf(args, "x", x, y.shape[0]);
  args.CheckDisjoint("y", y, "x", x);
  const double bytes = static_cast<double>(y.bytes());
  const Cost cost{.bytes_read = bytes, .bytes_written = bytes};
  stream.Enqueue({kOp,
                  {x},
                  {y},
                  {cost},
                  {OnCpu(FirstTokensForwardCpu, x, y), OnCuda(FirstTokensForwardCuda, x, y)}});
}

void FirstTokensBackward(Stream& stream, ConstView dy, View dx) {
  constexpr const char* kOp = "first_tokens_backward";
  const Arguments args(kOp);
  args.CheckDType("dx", dx.dtype, kFloatDTypes);
  args.CheckRank("dx", dx, dx.dtype, 2);
  args.CheckRank("dy", dy, dx.dtype, 2);
  args.Check("dy", dy, dx.dtype, {dy.shape[0], dx.shape[1]});
  RowsOf(args, "dx", dx, dy.shape[0]);
  args.CheckDisjoint("dx", dx, "dy", dy);
  const Cost cost{.bytes_read = static_cast<double>(dy.bytes()),
                  .bytes_written = static_cast<double>(dx.bytes())};
  stream.Enqueue(
      {kOp,
       {dy},
       {dx},
       {cost},
       {OnCpu(FirstTokensBackwardCpu, dy, dx), OnCuda(FirstTokensBackwardCuda, dy, dx)}});
}

}  // namespace fsdp
