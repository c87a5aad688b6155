#include "trainer/ops/running_statistics.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/running_statistics_cpu.h"
#include "trainer/ops/cuda/running_statistics_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

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
