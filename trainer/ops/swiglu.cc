#include "trainer/ops/swiglu.h"

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/swiglu_cpu.h"

namespace fsdp {
namespace {

struct Sizes {
  int64_t rows, inner;
};

Sizes CheckOperands(const Arguments& args, const ConstView& x, const char* y_name,
                    const ConstView& y) {
  args.CheckRank(y_name, y, DType::kFloat32, 2);
  const Sizes sizes{y.shape[0], y.shape[1]};
  args.Check("x", x, DType::kFloat32, {sizes.rows, 2 * sizes.inner});
  return sizes;
}

}  // namespace

void SwigluForward(Stream& stream, ConstView x, View y) {
  constexpr const char* kOp = "swiglu_forward";
  const Arguments args(kOp);
  const auto [rows, inner] = CheckOperands(args, x, "y", y);
  args.CheckDisjoint("y", y, "x", x);
  const double n = static_cast<double>(y.NumElements());
  const Cost cost{.flops = 20 * n, .bytes_read = 8 * n, .bytes_written = 4 * n};
  stream.Enqueue({kOp, {x}, {y}, cost}, [=, rows = rows, inner = inner](ThreadPool& pool) {
    SwigluForwardCpu(pool, x.As<float>(), rows, inner, y.As<float>());
  });
}

void SwigluBackward(Stream& stream, ConstView x, ConstView dy, View dx) {
  constexpr const char* kOp = "swiglu_backward";
  const Arguments args(kOp);
  const auto [rows, inner] = CheckOperands(args, x, "dy", dy);
  args.Check("dx", dx, DType::kFloat32, x.shape);
  args.CheckSameOrDisjoint("dx", dx, "x", x);
  args.CheckDisjoint("dx", dx, "dy", dy);
  const double n = static_cast<double>(dy.NumElements());
  const Cost cost{.flops = 26 * n, .bytes_read = 12 * n, .bytes_written = 8 * n};
  stream.Enqueue({kOp, {x, dy}, {dx}, cost}, [=, rows = rows, inner = inner](ThreadPool& pool) {
    SwigluBackwardCpu(pool, x.As<float>(), dy.As<float>(), rows, inner, dx.As<float>());
  });
}

}  // namespace fsdp
