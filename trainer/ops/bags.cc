#include "trainer/ops/bags.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/feature_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// The bag that a slot of a row lies in.
int64_t BagOf(const ConstView& first, int32_t slot) {
  const int32_t* const begin = first.As<int32_t>();
  return std::upper_bound(begin, begin + first.NumElements(), slot) - begin - 1;
}

// As ForEachPiece(), in pieces that a FloatPiece holds whatever the dtype.
template <typename Body>
void ForEachBuffer(int64_t width, const Body& body) {
  for (int64_t at = 0; at < width; at += kFloatPiece) body(at, std::min(kFloatPiece, width - at));
}

void PoolBagsCpu(ThreadPool& pool, const ConstView& vectors, const ConstView& places,
                 const ConstView& first, const View& out) {
  const int64_t slots = places.shape[1], width = vectors.shape[1];
  const int64_t tables = first.NumElements() - 1;
  pool.ParallelFor(out.shape[0], 8, [&](int64_t begin, int64_t end) {
    FloatPiece sum_buffer, buffer;
    for (int64_t bag = begin; bag < end; ++bag) {
      const int32_t* const row = places.As<int32_t>() + bag / tables * slots;
      const int32_t* const range = first.As<int32_t>() + bag % tables;
      ForEachBuffer(width, [&](int64_t col, int64_t n) {
        float* const sum = FloatsToWrite(out, bag * width + col, sum_buffer);
        std::fill_n(sum, n, 0.0f);
        for (int32_t s = range[0]; s < range[1]; ++s) {
          if (row[s] < 0) continue;
          const float* const in = ReadFloats(vectors, row[s] * width + col, n, buffer);
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) sum[j] += in[j];
        }
        WriteFloats(sum, n, out, bag * width + col);
      });
    }
  });
}

void PoolBagsBackwardCpu(ThreadPool& pool, const ConstView& d, const ConstView& places,
                         const ConstView& order, const ConstView& first, const View& sums) {
  const int64_t slots = places.shape[1], width = sums.shape[1], n_order = order.NumElements();
  const int64_t tables = first.NumElements() - 1;
  const int32_t* const place = places.As<int32_t>();
  const int32_t* const at = order.As<int32_t>();
  const int64_t present = std::find(at, at + n_order, -1) - at;
  // A thread has the places that begin in its stretch of the order, and all of each.
  const auto begins = [&](int64_t k) { return k == 0 || place[at[k - 1]] != place[at[k]]; };
  pool.ParallelFor(present, 16, [&](int64_t begin, int64_t end) {
    FloatPiece buffer;
    for (int64_t k = begin; k < end; ++k) {
      if (!begins(k)) continue;
      float* const to = sums.As<float>() + place[at[k]] * width;
      for (int64_t i = k; i < present && (i == k || !begins(i)); ++i) {
        const int64_t row = at[i] / slots;
        const int64_t bag = row * tables + BagOf(first, static_cast<int32_t>(at[i] % slots));
        ForEachBuffer(width, [&](int64_t col, int64_t n) {
          const float* const in = ReadFloats(d, bag * width + col, n, buffer);
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) to[col + j] += in[j];
        });
      }
    }
  });
}

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
                  {{cost, OnGpu{.launches = order.NumElements() < kHotSlots ? 1 : 2}}},
                  {.cpu = OnCpu(PoolBagsBackwardCpu, d, places, order, first, sums),
                   .cuda = OnCuda(PoolBagsBackwardCuda, d, places, order, first, sums)}});
}

}  // namespace fsdp
