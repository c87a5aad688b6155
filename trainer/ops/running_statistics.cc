#include "trainer/ops/running_statistics.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/batch_norm_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

void CountBatchCpu(ThreadPool&, const View& count) { *count.As<int64_t>() += 1; }

void TakeUnlessNaNCpu(ThreadPool& pool, const ConstView& coefficient, float divisor,
                      const ConstView& from, const View& to) {
  if (std::isnan(*coefficient.As<float>())) return;
  if (to.dtype == DType::kInt64) {
    std::memcpy(to.data, from.data, static_cast<size_t>(to.bytes()));
    return;
  }
  constexpr int64_t kGrain = 4096;
  pool.ParallelFor(to.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to.As<float>()[i] = from.As<float>()[i] / divisor;
  });
}

void MeanOfCpu(ThreadPool&, const ConstView& sums, const ConstView& weight, const View& mean) {
  const float divisor = *weight.As<float>();
  for (int64_t i = 0; i < mean.NumElements(); ++i) {
    mean.As<float>()[i] = divisor == 0 ? 0 : sums.As<float>()[i] / divisor;
  }
}

void MoveBiasCpu(ThreadPool&, const ConstView& coefficient, const ConstView& loads, float rate,
                 const View& bias) {
  if (std::isnan(*coefficient.As<float>())) return;
  const auto* const load = loads.As<float>();
  const int64_t n = loads.NumElements();
  const double mean = std::accumulate(load, load + n, 0.0) / static_cast<double>(n);
  for (int64_t e = 0; e < n; ++e) {
    const double lacks = mean - static_cast<double>(load[e]);
    if (lacks != 0) bias.As<float>()[e] += lacks > 0 ? rate : -rate;
  }
}

}  // namespace

void CountBatch(Stream& stream, View count) {
  constexpr const char* kOp = "count_batch";
  const Arguments args(kOp);
  args.CheckElements("count", count, DType::kInt64, 1);
  const auto bytes = static_cast<double>(count.bytes());
  const Cost cost{.bytes_read = bytes, .bytes_written = bytes};
  DeviceKernels kernels{.cpu = OnCpu(CountBatchCpu, count), .cuda = OnCuda(CountBatchCuda, count)};
  stream.Enqueue({kOp, {count}, {count}, {cost}, std::move(kernels)});
}

void TakeUnlessNaN(Stream& stream, ConstView coefficient, float divisor, ConstView from, View to) {
  constexpr const char* kOp = "take_unless_nan";
  const Arguments args(kOp);
  args.Check("coefficient", coefficient, DType::kFloat32, {1});
  args.CheckDType("from", from.dtype, {DType::kFloat32, DType::kInt64});
  args.Require(divisor > 0, "divisor is not positive");
  args.Require(divisor == 1 || from.dtype == DType::kFloat32, "divisor of int64 is not 1");
  args.CheckElements("to", to, from.dtype, from.NumElements());
  args.CheckElements("from", from, from.dtype, to.NumElements());
  args.CheckDisjoint("to", to, "from", from);
  args.CheckDisjoint("to", to, "coefficient", coefficient);
  const Cost cost{.flops = static_cast<double>(to.NumElements()),
                  .bytes_read = static_cast<double>(coefficient.bytes() + from.bytes()),
                  .bytes_written = static_cast<double>(to.bytes())};
  DeviceKernels kernels{.cpu = OnCpu(TakeUnlessNaNCpu, coefficient, divisor, from, to),
                        .cuda = OnCuda(TakeUnlessNaNCuda, coefficient, divisor, from, to)};
  // `to` is also declared as read, because its old values may stay.
  stream.Enqueue({kOp, {coefficient, from, to}, {to}, {cost}, std::move(kernels)});
}

void MeanOf(Stream& stream, ConstView sums, ConstView weight, View mean) {
  constexpr const char* kOp = "mean_of";
  const Arguments args(kOp);
  args.Check("weight", weight, DType::kFloat32, {1});
  args.CheckElements("sums", sums, DType::kFloat32, mean.NumElements());
  args.CheckElements("mean", mean, DType::kFloat32, sums.NumElements());
  args.CheckDisjoint("mean", mean, "sums", sums);
  args.CheckDisjoint("mean", mean, "weight", weight);
  const Cost cost{.flops = static_cast<double>(mean.NumElements()),
                  .bytes_read = static_cast<double>(sums.bytes() + weight.bytes()),
                  .bytes_written = static_cast<double>(mean.bytes())};
  DeviceKernels kernels{.cpu = OnCpu(MeanOfCpu, sums, weight, mean),
                        .cuda = OnCuda(MeanOfCuda, sums, weight, mean)};
  stream.Enqueue({kOp, {sums, weight}, {mean}, {cost}, std::move(kernels)});
}

void MoveBias(Stream& stream, ConstView coefficient, ConstView loads, float rate, View bias) {
  constexpr const char* kOp = "move_bias";
  const Arguments args(kOp);
  args.Check("coefficient", coefficient, DType::kFloat32, {1});
  args.CheckElements("loads", loads, DType::kFloat32, bias.NumElements());
  args.CheckElements("bias", bias, DType::kFloat32, loads.NumElements());
  args.CheckDisjoint("bias", bias, "loads", loads);
  args.CheckDisjoint("bias", bias, "coefficient", coefficient);
  const Cost cost{
      .flops = 3 * static_cast<double>(bias.NumElements()),
      .bytes_read = static_cast<double>(coefficient.bytes() + loads.bytes() + bias.bytes()),
      .bytes_written = static_cast<double>(bias.bytes())};
  DeviceKernels kernels{.cpu = OnCpu(MoveBiasCpu, coefficient, loads, rate, bias),
                        .cuda = OnCuda(MoveBiasCuda, coefficient, loads, rate, bias)};
  stream.Enqueue({kOp, {coefficient, loads, bias}, {bias}, {cost}, std::move(kernels)});
}

}  // namespace fsdp
