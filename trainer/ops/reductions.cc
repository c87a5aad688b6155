#include "trainer/ops/reductions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/reductions_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int64_t kChunk = 256;  // Shards are multiples of it: see the layout.
constexpr int64_t kGroups = 64;

// Eight sums take turns, and the rest goes to the first, so no compiler chooses the order.
float ChunkSum(const float* x, int64_t n) {
  constexpr int64_t kLanes = 8;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = std::fma(x[i + lane], x[i + lane], lanes[lane]);
    }
  }
  for (; i < n; ++i) lanes[0] = std::fma(x[i], x[i], lanes[0]);
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// chunk_sum(const float* elements, n, group) of each chunk, added up as the header says.
template <typename ChunkSum>
void AddSums(ThreadPool& pool, const ConstView& x, const View& out, const ChunkSum& chunk_sum) {
  const int64_t n = x.NumElements();
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  std::array<double, kGroups> groups{};
  pool.ParallelFor(kGroups, 1, [&](int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group) {
      double sum = 0;
      for (int64_t c = chunks * group / kGroups; c < chunks * (group + 1) / kGroups; ++c) {
        const int64_t count = std::min(kChunk, n - c * kChunk);
        float buffer[kChunk];
        sum += chunk_sum(ReadFloats(x, c * kChunk, count, buffer), count, group);
      }
      groups[group] = sum;
    }
  });
  double total = *out.As<float>();
  for (const double sum : groups) total += sum;
  *out.As<float>() = static_cast<float>(total);
}

void SumOfSquaresCpu(ThreadPool& pool, const ConstView& x, const View& out) {
  AddSums(pool, x, out, [](const float* from, int64_t n, int64_t) { return ChunkSum(from, n); });
}

void UnscaledSumOfSquaresCpu(ThreadPool& pool, const ConstView& x, const ConstView& scale,
                             const View& out, const View& found) {
  const double inverse = 1 / static_cast<double>(*scale.As<float>());
  std::array<int64_t, kGroups> not_finite{};
  AddSums(pool, x, out, [&](const float* from, int64_t n, int64_t group) {
    float unscaled[kChunk];
    int count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t i = 0; i < n; ++i) {
      unscaled[i] = static_cast<float>(from[i] * inverse);
      count += std::abs(from[i]) <= std::numeric_limits<float>::max() ? 0 : 1;
    }
    not_finite[group] += count;
    return ChunkSum(unscaled, n);
  });
  int64_t count = 0;
  for (const int64_t in_group : not_finite) count += in_group;
  *found.As<float>() += static_cast<float>(count);
}

void ClipCoefficientCpu(ThreadPool&, const ConstView& loss, const ConstView& sum_of_squares,
                        const ConstView& mean_scale, const std::optional<LossScaling>& scaling,
                        float max_norm, const View& norm, const View& coefficient) {
  float c = *mean_scale.As<float>();
  float n = std::sqrt(*sum_of_squares.As<float>()) * c;
  if (scaling && *scaling->found_inf.As<float>() != 0) n = std::numeric_limits<float>::infinity();
  if (max_norm > 0) c *= std::min(1.0f, max_norm / (n + 1e-6f));
  if (scaling) c = static_cast<float>(c / static_cast<double>(*scaling->scale.As<float>()));
  const bool lands = std::isfinite(n) && std::isfinite(*loss.As<float>());
  *norm.As<float>() = n;
  *coefficient.As<float>() = lands ? c : std::numeric_limits<float>::quiet_NaN();
}

// The workspace as what the operation writes; empty where its device needs none.
std::vector<Range> CheckedWorkspace(const Arguments& args, const Stream& stream,
                                    const View& workspace) {
  const int64_t bytes = SumOfSquaresWorkspaceBytes(stream.device().kernel_type());
  args.CheckWorkspace(workspace, bytes);
  if (bytes == 0) return {};
  return {workspace};
}

// Sums of groups, and a launch that adds them up.
OnGpu SquaresOnGpu(int64_t n) {
  const int64_t groups = SquaresGroups(n);
  return {.launches = groups > 0 ? 2 : 1,
          .extra_bytes = 2.0 * static_cast<double>(groups * sizeof(SquaresOfGroup))};
}

}  // namespace

int64_t SumOfSquaresWorkspaceBytes(DeviceType device) {
  Arguments("sum_of_squares").CheckHasKernels("x", DType::kFloat32, kFloatDTypes, device);
  return device == DeviceType::kCuda ? kMaxSquaresGroups * sizeof(SquaresOfGroup) : 0;
}

void SumOfSquares(Stream& stream, ConstView x, View out, View workspace) {
  constexpr const char* kOp = "sum_of_squares";
  const Arguments args(kOp);
  const int64_t n = x.NumElements();
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckElements("x", x, x.dtype, n);
  args.Check("out", out, DType::kFloat32, {1});
  args.CheckDisjoint("out", out, "x", x);
  const Cost cost{.flops = 2.0 * n,
                  .bytes_read = static_cast<double>(x.bytes() + out.bytes()),
                  .bytes_written = static_cast<double>(out.bytes())};
  std::vector<Range> writes = CheckedWorkspace(args, stream, workspace);
  writes.push_back(out);
  DeviceKernels kernels{.cpu = OnCpu(SumOfSquaresCpu, x, out),
                        .cuda = OnCuda(SumOfSquaresCuda, x, out, workspace)};
  stream.Enqueue({kOp, {x}, std::move(writes), {{cost, SquaresOnGpu(n)}}, std::move(kernels)});
}

void UnscaledSumOfSquares(Stream& stream, ConstView x, ConstView scale, View out, View found,
                          View workspace) {
  constexpr const char* kOp = "unscaled_sum_of_squares";
  const Arguments args(kOp);
  const int64_t n = x.NumElements();
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckElements("x", x, x.dtype, n);
  args.Check("scale", scale, DType::kFloat32, {1});
  args.Check("out", out, DType::kFloat32, {1});
  args.Check("found", found, DType::kFloat32, {1});
  args.CheckDisjoint("out", out, "x", x);
  args.CheckDisjoint("found", found, "x", x);
  args.CheckDisjoint("found", found, "out", out);
  const Cost cost{.flops = 4.0 * n,
                  .bytes_read = static_cast<double>(x.bytes() + scale.bytes() + 2 * out.bytes()),
                  .bytes_written = static_cast<double>(2 * out.bytes())};
  std::vector<Range> writes = CheckedWorkspace(args, stream, workspace);
  writes.insert(writes.end(), {out, found});
  DeviceKernels kernels{.cpu = OnCpu(UnscaledSumOfSquaresCpu, x, scale, out, found),
                        .cuda = OnCuda(UnscaledSumOfSquaresCuda, x, scale, out, found, workspace)};
  stream.Enqueue(
      {kOp, {x, scale}, std::move(writes), {{cost, SquaresOnGpu(n)}}, std::move(kernels)});
}

void ClipCoefficient(Stream& stream, ConstView loss, ConstView sum_of_squares, ConstView mean_scale,
                     const std::optional<LossScaling>& scaling, float max_norm, View norm,
                     View coefficient) {
  constexpr const char* kOp = "clip_coefficient";
  const Arguments args(kOp);
  args.Check("loss", loss, DType::kFloat32, {1});
  args.Check("sum_of_squares", sum_of_squares, DType::kFloat32, {1});
  args.Check("mean_scale", mean_scale, DType::kFloat32, {1});
  args.Check("norm", norm, DType::kFloat32, {1});
  args.Check("coefficient", coefficient, DType::kFloat32, {1});
  args.CheckDisjoint("coefficient", coefficient, "norm", norm);
  args.Require(max_norm >= 0, "max_norm, want >= 0");
  std::vector<Range> reads{loss, sum_of_squares, mean_scale};
  if (scaling) {
    args.Check("scale", scaling->scale, DType::kFloat32, {1});
    args.Check("found_inf", scaling->found_inf, DType::kFloat32, {1});
    reads.insert(reads.end(), {scaling->scale, scaling->found_inf});
  }
  const Cost cost{.flops = 7,
                  .bytes_read = 4 * static_cast<double>(reads.size()),
                  .bytes_written = static_cast<double>(norm.bytes() + coefficient.bytes())};
  std::optional<ConstView> scale, found;
  if (scaling) scale = scaling->scale, found = scaling->found_inf;
  DeviceKernels kernels{.cpu = OnCpu(ClipCoefficientCpu, loss, sum_of_squares, mean_scale, scaling,
                                     max_norm, norm, coefficient),
                        .cuda = OnCuda(ClipCoefficientCuda, loss, sum_of_squares, mean_scale, scale,
                                       found, max_norm, norm, coefficient)};
  stream.Enqueue({kOp, std::move(reads), {norm, coefficient}, {cost}, std::move(kernels)});
}

}  // namespace fsdp
