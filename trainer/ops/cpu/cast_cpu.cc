#include "trainer/ops/cpu/cast_cpu.h"

#include "trainer/core/check.h"
#include "trainer/ops/cpu/convert.h"

namespace fsdp {
namespace {

constexpr int64_t kGrain = 1024;

template <typename From, typename To>
void Run(ThreadPool& pool, const ConstView& x, const View& y) {
  pool.ParallelFor(y.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    Convert(x.As<From>() + begin, end - begin, y.As<To>() + begin);
  });
}

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

}  // namespace fsdp
