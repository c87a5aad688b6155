#include "trainer/ops/running_statistics.h"

#include <cmath>
#include <cstring>
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

}  // namespace fsdp
