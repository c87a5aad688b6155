#include "trainer/ops/bags.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/bags_cpu.h"
#include "trainer/ops/cuda/bags_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// Checks the operands that both directions have. `bags`: out or d.
void CheckBags(const Arguments& args, const char* bags_name, const ConstView& bags,
               const ConstView& places, const ConstView& first, int64_t width) {
  args.CheckDType(bags_name, bags.dtype, kFloatDTypes);
  args.CheckRank("places", places, DType::kInt32, 2);
  args.CheckRank("first", first, DType::kInt32, 1);
  const int64_t tables = first.shape[0] - 1;
  args.Require(tables > 0, "first has less than two numbers");
  args.Check(bags_name, bags, bags.dtype, {places.shape[0] * tables, width});
}

double NamedBytes(const ConstView& places, const ConstView& vectors) {
  return static_cast<double>(places.NumElements() * vectors.shape[1] * SizeOf(vectors.dtype));
}

}  // namespace

void PoolBags(Stream& stream, ConstView vectors, ConstView places, ConstView first, View out) {
  constexpr const char* kOp = "pool_bags";
  const Arguments args(kOp);
  args.CheckDType("vectors", vectors.dtype, {DType::kFloat32, DType::kBFloat16});
  args.CheckRank("vectors", vectors, vectors.dtype, 2);
  CheckBags(args, "out", out, places, first, vectors.shape[1]);
  args.CheckDisjoint("out", out, "vectors", vectors);
  args.CheckDisjoint("out", out, "places", places);
  args.CheckDisjoint("out", out, "first", first);
  const Cost cost{.flops = static_cast<double>(places.NumElements() * vectors.shape[1]),
                  .bytes_read = static_cast<double>(places.bytes() + first.bytes()) +
                                NamedBytes(places, vectors),
                  .bytes_written = static_cast<double>(out.bytes())};
  stream.Enqueue({kOp,
                  {vectors, places, first},
                  {out},
                  {cost},
                  {.cpu = OnCpu(PoolBagsCpu, vectors, places, first, out),
                   .cuda = OnCuda(PoolBagsCuda, vectors, places, first, out)}});
}

void PoolBagsBackward(Stream& stream, ConstView d, ConstView places, ConstView order,
                      ConstView first, View sums) {
  constexpr const char* kOp = "pool_bags_backward";
  const Arguments args(kOp);
  args.CheckRank("sums", sums, DType::kFloat32, 2);
  CheckBags(args, "d", d, places, first, sums.shape[1]);
  args.Check("order", order, DType::kInt32, {places.NumElements()});
  args.CheckDisjoint("sums", sums, "d", d);
  args.CheckDisjoint("sums", sums, "places", places);
  args.CheckDisjoint("sums", sums, "order", order);
  args.CheckDisjoint("sums", sums, "first", first);
  const auto elements = static_cast<double>(places.NumElements() * sums.shape[1]);
  const Cost cost{
      .flops = elements,
      .bytes_read = static_cast<double>(places.bytes() + order.bytes() + first.bytes()) +
                    elements * static_cast<double>(SizeOf(d.dtype)) + NamedBytes(places, sums),
      .bytes_written = NamedBytes(places, sums)};
  stream.Enqueue({kOp,
                  {d, places, order, first, sums},
                  {sums},
                  {cost},
                  {.cpu = OnCpu(PoolBagsBackwardCpu, d, places, order, first, sums),
                   .cuda = OnCuda(PoolBagsBackwardCuda, d, places, order, first, sums)}});
}

}  // namespace fsdp
