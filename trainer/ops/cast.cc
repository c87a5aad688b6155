#include "trainer/ops/cast.h"

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/cast_cpu.h"
#include "trainer/ops/elementwise.h"

namespace fsdp {
namespace {

bool IsFloat(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

}  // namespace

void Cast(Stream& stream, ConstView x, View y) {
  constexpr const char* kOp = "cast";
  const Arguments args(kOp);
  if (!IsFloat(x.dtype) || !IsFloat(y.dtype)) {
    args.Fail("x is " + std::string(Name(x.dtype)) + " and y " + std::string(Name(y.dtype)) +
              ", want fp32, bf16 or fp16");
  }
  args.CheckElements("x", x, x.dtype, y.NumElements());
  args.CheckElements("y", y, y.dtype, y.NumElements());
  if (x.dtype == y.dtype) return Copy(stream, x, y);
  args.CheckDisjoint("y", y, "x", x);
  const Cost cost{.bytes_read = static_cast<double>(x.bytes()),
                  .bytes_written = static_cast<double>(y.bytes())};
  stream.Enqueue({kOp, {x}, {y}, {cost}, {OnCpu(CastCpu, x, y)}});
}

}  // namespace fsdp
