#include "trainer/ops/feature_vectors.h"

#include <initializer_list>
#include <string>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/feature_vectors_cpu.h"
#include "trainer/ops/cuda/feature_vectors_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

double BytesOf(std::initializer_list<ConstView> views) {
  double bytes = 0;
  for (const ConstView& view : views) bytes += static_cast<double>(view.bytes());
  return bytes;
}

// Checks two matrices that are the columns of y.
void CheckColumns(const Arguments& args, const ConstView& a, const ConstView& b,
                  const ConstView& y) {
  args.CheckDType("y", y.dtype, kFloatDTypes);
  args.CheckRank("y", y, y.dtype, 2);
  args.CheckRank("a", a, y.dtype, 2);
  args.Check("a", a, y.dtype, {y.shape[0], a.shape[1]});
  args.Check("b", b, y.dtype, {y.shape[0], y.shape[1] - a.shape[1]});
  args.CheckDisjoint("y", y, "a", a);
  args.CheckDisjoint("y", y, "b", b);
}

// Vectors of a sample. `y`: their result, a row for each sample.
int64_t CheckPairs(const Arguments& args, const ConstView& x, const char* name,
                   const ConstView& y) {
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank("x", x, x.dtype, 2);
  args.CheckRank(name, y, x.dtype, 2);
  const int64_t samples = y.shape[0], rows = x.shape[0];
  if (samples < 1 || rows % samples != 0 || rows / samples < 2) {
    args.Fail("x has " + std::to_string(rows) + " rows, for pairs of " + std::to_string(samples) +
              " samples");
  }
  const int64_t n = rows / samples;
  args.Check(name, y, x.dtype, {samples, n * (n - 1) / 2});
  args.CheckDisjoint(name, y, "x", x);
  return n;
}

}  // namespace

void JoinColumns(Stream& stream, ConstView a, ConstView b, View y) {
  constexpr const char* kOp = "join_columns";
  CheckColumns(Arguments(kOp), a, b, y);
  const Cost cost{.bytes_read = BytesOf({a, b}), .bytes_written = BytesOf({y})};
  stream.Enqueue({kOp,
                  {a, b},
                  {y},
                  {{cost, OnGpu{.launches = 2}}},
                  {OnCpu(JoinColumnsCpu, a, b, y), OnCuda(JoinColumnsCuda, a, b, y)}});
}

void SplitColumns(Stream& stream, ConstView y, View a, View b) {
  constexpr const char* kOp = "split_columns";
  const Arguments args(kOp);
  CheckColumns(args, a, b, y);
  args.CheckDisjoint("a", a, "b", b);
  const Cost cost{.bytes_read = BytesOf({y}), .bytes_written = BytesOf({a, b})};
  stream.Enqueue({kOp,
                  {y},
                  {a, b},
                  {{cost, OnGpu{.launches = 2}}},
                  {OnCpu(SplitColumnsCpu, y, a, b), OnCuda(SplitColumnsCuda, y, a, b)}});
}

void SwapVectors(Stream& stream, ConstView x, int64_t samples, View y) {
  constexpr const char* kOp = "swap_vectors";
  const Arguments args(kOp);
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank("x", x, x.dtype, 2);
  if (samples < 1 || x.shape[0] == 0 || x.shape[0] % samples != 0) {
    args.Fail("x has " + std::to_string(x.shape[0]) + " rows, for " + std::to_string(samples) +
              " samples");
  }
  args.Check("y", y, x.dtype, {samples * x.shape[1], x.shape[0] / samples});
  args.CheckDisjoint("y", y, "x", x);
  const Cost cost{.bytes_read = BytesOf({x}), .bytes_written = BytesOf({y})};
  stream.Enqueue({kOp,
                  {x},
                  {y},
                  {cost},
                  {OnCpu(SwapVectorsCpu, x, samples, y), OnCuda(SwapVectorsCuda, x, samples, y)}});
}

void PairDotsForward(Stream& stream, ConstView x, float scale, View y) {
  constexpr const char* kOp = "pair_dots_forward";
  CheckPairs(Arguments(kOp), x, "y", y);
  const Cost cost{
      .flops = 2 * static_cast<double>(y.NumElements()) * static_cast<double>(x.shape[1]),
      .bytes_read = BytesOf({x}),
      .bytes_written = BytesOf({y})};
  stream.Enqueue(
      {kOp,
       {x},
       {y},
       {cost},
       {OnCpu(PairDotsForwardCpu, x, scale, y), OnCuda(PairDotsForwardCuda, x, scale, y)}});
}

void PairDotsBackward(Stream& stream, ConstView x, float scale, ConstView dy, View dx) {
  constexpr const char* kOp = "pair_dots_backward";
  const Arguments args(kOp);
  CheckPairs(args, x, "dy", dy);
  args.Check("dx", dx, x.dtype, x.shape);
  args.CheckDisjoint("dx", dx, "x", x);
  args.CheckDisjoint("dx", dx, "dy", dy);
  const Cost cost{
      .flops = 4 * static_cast<double>(dy.NumElements()) * static_cast<double>(x.shape[1]),
      .bytes_read = BytesOf({x, dy}),
      .bytes_written = BytesOf({dx})};
  stream.Enqueue({kOp,
                  {x, dy},
                  {dx},
                  {cost},
                  {OnCpu(PairDotsBackwardCpu, x, scale, dy, dx),
                   OnCuda(PairDotsBackwardCuda, x, scale, dy, dx)}});
}

void MultiplyForward(Stream& stream, ConstView a, ConstView b, View y) {
  constexpr const char* kOp = "multiply_forward";
  const Arguments args(kOp);
  args.CheckDType("y", y.dtype, kFloatDTypes);
  const int64_t n = y.NumElements();
  args.CheckElements("y", y, y.dtype, n);
  for (const auto& [name, view] : {std::pair("a", a), {"b", b}}) {
    args.CheckElements(name, view, y.dtype, n);
    args.CheckDisjoint("y", y, name, view);
  }
  const Cost cost{.flops = static_cast<double>(n),
                  .bytes_read = BytesOf({a, b}),
                  .bytes_written = BytesOf({y})};
  stream.Enqueue({kOp,
                  {a, b},
                  {y},
                  {cost},
                  {OnCpu(MultiplyForwardCpu, a, b, y), OnCuda(MultiplyForwardCuda, a, b, y)}});
}

void MultiplyBackward(Stream& stream, ConstView a, ConstView b, ConstView dy, View da, View db) {
  constexpr const char* kOp = "multiply_backward";
  const Arguments args(kOp);
  args.CheckDType("dy", dy.dtype, kFloatDTypes);
  const int64_t n = dy.NumElements();
  args.CheckElements("dy", dy, dy.dtype, n);
  for (const auto& [name, view] : {std::pair("a", a), {"b", b}}) {
    args.CheckElements(name, view, dy.dtype, n);
  }
  for (const auto& [result, out] : {std::pair("da", da), {"db", db}}) {
    args.CheckElements(result, out, dy.dtype, n);
    for (const auto& [name, view] : {std::pair("a", a), {"b", b}, {"dy", dy}}) {
      args.CheckDisjoint(result, out, name, view);
    }
  }
  args.CheckDisjoint("da", da, "db", db);
  const Cost cost{.flops = 2 * static_cast<double>(n),
                  .bytes_read = BytesOf({a, b, dy}),
                  .bytes_written = BytesOf({da, db})};
  stream.Enqueue({kOp,
                  {a, b, dy},
                  {da, db},
                  {cost},
                  {OnCpu(MultiplyBackwardCpu, a, b, dy, da, db),
                   OnCuda(MultiplyBackwardCuda, a, b, dy, da, db)}});
}

}  // namespace fsdp
