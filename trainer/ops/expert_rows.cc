#include "trainer/ops/expert_rows.h"

#include <algorithm>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/expert_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int64_t kGrain = 16;  // Tokens.

// Some thousand integers: not worth a second thread.
void GroupRowsCpu(ThreadPool&, const ConstView& choices, const View& offsets, const View& tokens,
                  const View& places) {
  const int64_t count = choices.NumElements(), per_token = choices.shape[1];
  const int64_t experts = offsets.NumElements() - 1;
  const int32_t* const choice = choices.As<int32_t>();
  int32_t* const offset = offsets.As<int32_t>();
  int32_t* const token = tokens.As<int32_t>();
  std::fill_n(offset, experts + 1, 0);
  for (int64_t i = 0; i < count; ++i) {
    if (choice[i] >= 0) ++offset[choice[i] + 1];
  }
  for (int64_t e = 0; e < experts; ++e) offset[e + 1] += offset[e];
  std::fill(token + offset[experts], token + count, 0);
  // offset[e] runs through e's rows, and is then the begin of the next one's.
  for (int64_t i = 0; i < count; ++i) {
    const int32_t row = choice[i] < 0 ? -1 : offset[choice[i]]++;
    places.As<int32_t>()[i] = row;
    if (row >= 0) token[row] = static_cast<int32_t>(i / per_token);
  }
  for (int64_t e = experts - 1; e > 0; --e) offset[e] = offset[e - 1];
  offset[0] = 0;
}

void CombineRowsCpu(ThreadPool& pool, const ConstView& rows, const ConstView& places,
                    const std::optional<ConstView>& base, const View& out) {
  const int64_t width = out.shape[1], per_token = places.shape[1];
  pool.ParallelFor(out.shape[0], kGrain, [&](int64_t begin, int64_t end) {
    FloatPiece sum, buffer;
    for (int64_t t = begin; t < end; ++t) {
      const int32_t* const place = places.As<int32_t>() + t * per_token;
      for (int64_t col = 0; col < width; col += kFloatPiece) {
        const int64_t n = std::min(kFloatPiece, width - col), at = t * width + col;
        if (base) {
          std::copy_n(ReadFloats(*base, at, n, buffer), n, sum);
        } else {
          std::fill_n(sum, n, 0.0f);
        }
        for (int64_t j = 0; j < per_token; ++j) {
          if (place[j] < 0) continue;
          const float* const row = ReadFloats(rows, place[j] * width + col, n, buffer);
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) sum[i] += row[i];
        }
        if (out.dtype == DType::kFloat32) std::copy_n(sum, n, out.As<float>() + at);
        WriteFloats(sum, n, out, at);
      }
    }
  });
}

}  // namespace

void GroupRows(Stream& stream, ConstView choices, View offsets, View tokens, View places) {
  constexpr const char* kOp = "group_rows";
  constexpr DType kInt = DType::kInt32;
  const Arguments args(kOp);
  args.CheckRank("choices", choices, kInt, 2);
  args.CheckRank("offsets", offsets, kInt, 1);
  args.Require(offsets.NumElements() > 1, "offsets has less than two elements");
  args.Check("tokens", tokens, kInt, {choices.NumElements()});
  args.Check("places", places, kInt, choices.shape);
  args.CheckDisjoint("offsets", offsets, "choices", choices);
  args.CheckDisjoint("tokens", tokens, "choices", choices);
  args.CheckDisjoint("places", places, "choices", choices);
  args.CheckDisjoint("tokens", tokens, "offsets", offsets);
  args.CheckDisjoint("places", places, "offsets", offsets);
  args.CheckDisjoint("places", places, "tokens", tokens);
  const Cost cost{
      .bytes_read = static_cast<double>(choices.bytes()),
      .bytes_written = static_cast<double>(offsets.bytes() + tokens.bytes() + places.bytes())};
  stream.Enqueue({kOp,
                  {choices},
                  {offsets, tokens, places},
                  {cost},
                  {.cpu = OnCpu(GroupRowsCpu, choices, offsets, tokens, places),
                   .cuda = OnCuda(GroupRowsCuda, choices, offsets, tokens, places)}});
}

void CombineRows(Stream& stream, ConstView rows, ConstView places, std::optional<ConstView> base,
                 View out) {
  constexpr const char* kOp = "combine_rows";
  const Arguments args(kOp);
  args.CheckDType("out", out.dtype, kFloatDTypes);
  args.CheckRank("out", out, out.dtype, 2);
  args.CheckRank("places", places, DType::kInt32, 2);
  args.Check("places", places, DType::kInt32, {out.shape[0], places.shape[1]});
  args.CheckRank("rows", rows, out.dtype, 2);
  args.Check("rows", rows, out.dtype, {rows.shape[0], out.shape[1]});
  args.CheckDisjoint("out", out, "rows", rows);
  args.CheckDisjoint("out", out, "places", places);
  Operation operation{.name = kOp, .reads = {rows, places}, .writes = {out}, .costs = {}};
  Cost cost{.flops = static_cast<double>(places.NumElements() * out.shape[1]),
            .bytes_read = static_cast<double>(
                places.NumElements() * out.shape[1] * SizeOf(rows.dtype) + places.bytes()),
            .bytes_written = static_cast<double>(out.bytes())};
  if (base) {
    args.Check("base", *base, out.dtype, out.shape);
    args.CheckSameOrDisjoint("out", out, "base", *base);
    operation.reads.push_back(*base);
    cost.bytes_read += static_cast<double>(base->bytes());
  }
  operation.costs = {{cost, {.launches = out.NumElements() > 0}}};
  operation.kernels = {.cpu = OnCpu(CombineRowsCpu, rows, places, base, out),
                       .cuda = OnCuda(CombineRowsCuda, rows, places, base, out)};
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
