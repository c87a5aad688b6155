#include "trainer/ops/dropout.h"

#include <cmath>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/dropout_cpu.h"
#include "trainer/ops/cuda/dropout_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

void Dropout(Stream& stream, ConstView x, ConstView keys, uint32_t site, double rate, View y) {
  constexpr const char* kOp = "dropout";
  const Arguments args(kOp);
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank("x", x, x.dtype, 2);
  args.Check("y", y, x.dtype, x.shape);
  args.Check("keys", keys, DType::kInt32, {x.shape[0], 2});
  args.CheckSameOrDisjoint("y", y, "x", x);
  args.CheckDisjoint("y", y, "keys", keys);
  args.Require(rate >= 0 && rate < 1, "rate is not in [0, 1)");
  const auto threshold = static_cast<uint32_t>(std::ldexp(rate, 32));
  const auto scale = static_cast<float>(1 / (1 - rate));
  const double n = static_cast<double>(x.NumElements());
  const Cost cost{.flops = 15 * n,
                  .bytes_read = static_cast<double>(x.bytes()),
                  .bytes_written = static_cast<double>(y.bytes())};
  DeviceKernels kernels{.cpu = OnCpu(DropoutCpu, x, keys, site, threshold, scale, y),
                        .cuda = OnCuda(DropoutCuda, x, keys, site, threshold, scale, y)};
  stream.Enqueue({kOp, {x, keys}, {y}, {cost}, std::move(kernels)});
}

}  // namespace fsdp
