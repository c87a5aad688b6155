#include "trainer/ops/cast.h"

#include "trainer/core/check.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/convert.h"
#include "trainer/ops/element_backends.h"
#include "trainer/ops/elementwise.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int64_t kGrain = 1024;

template <typename From, typename To>
void Run(ThreadPool& pool, const ConstView& x, const View& y) {
  pool.ParallelFor(y.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    Convert(x.As<From>() + begin, end - begin, y.As<To>() + begin);
  });
}

// The dtypes differ.
}  // namespace

void CastCpu(ThreadPool& pool, const ConstView& x, const View& y) {
  const auto is = [&](DType from, DType to) { return x.dtype == from && y.dtype == to; };
  if (is(DType::kFloat32, DType::kBFloat16)) return Run<float, BFloat16>(pool, x, y);
  if (is(DType::kFloat32, DType::kFloat16)) return Run<float, Float16>(pool, x, y);
  if (is(DType::kBFloat16, DType::kFloat32)) return Run<BFloat16, float>(pool, x, y);
  if (is(DType::kBFloat16, DType::kFloat16)) return Run<BFloat16, Float16>(pool, x, y);
  if (is(DType::kFloat16, DType::kFloat32)) return Run<Float16, float>(pool, x, y);
  if (is(DType::kFloat16, DType::kBFloat16)) return Run<Float16, BFloat16>(pool, x, y);
  FSDP_CHECK(false) << Name(x.dtype) << " to " << Name(y.dtype);
}

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
