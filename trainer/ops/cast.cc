#include "trainer/ops/cast.h"

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/cast_cpu.h"
#include "trainer/ops/cuda/cast_cuda.h"
#include "trainer/ops/elementwise.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

void Cast(Stream& stream, ConstView x, View y) {
  constexpr const char* kOp = "cast";
  const Arguments args(kOp);
  args.CheckDType("x", x.dtype, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
  args.CheckDType("y", y.dtype, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
  args.CheckElements("x", x, x.dtype, y.NumElements());
  args.CheckElements("y", y, y.dtype, y.NumElements());
  if (x.dtype == y.dtype) return Copy(stream, x, y);
  args.CheckDisjoint("y", y, "x", x);
  const Cost cost{.bytes_read = static_cast<double>(x.bytes()),
                  .bytes_written = static_cast<double>(y.bytes())};
  stream.Enqueue({kOp, {x}, {y}, {cost}, {OnCpu(CastCpu, x, y), OnCuda(CastCuda, x, y)}});
}

}  // namespace fsdp
