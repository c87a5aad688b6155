#include "trainer/ops/rope.h"

#include <cmath>
#include <cstdint>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/attention_backends.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

struct RopeShape {
  int64_t tokens, heads, half;  // half: head_dim / 2.
  int64_t table_rows;
};

void Rotate(const float* cosines, const float* sines, float sign, int64_t n, float* a, float* b) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float first = a[i], second = b[i], sine = sign * sines[i];
    a[i] = first * cosines[i] - second * sine;
    b[i] = second * cosines[i] + first * sine;
  }
}

void RopeTableCpu(ThreadPool& pool, const std::vector<double>& frequencies, double factor,
                  const View& table) {
  const auto n = static_cast<int64_t>(frequencies.size());
  pool.ParallelFor(table.shape[0], 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      float *cosines = table.As<float>() + p * 2 * n, *sines = cosines + n;
      for (int64_t i = 0; i < n; ++i) {
        const double angle = static_cast<double>(p) * frequencies[i];
        cosines[i] = static_cast<float>(factor * std::cos(angle));
        sines[i] = static_cast<float>(factor * std::sin(angle));
      }
    }
  });
}

void RopeCpu(ThreadPool& pool, const RopeShape& s, const ConstView& table,
             const ConstView& position_ids, bool backward, const Heads& x) {
  const int32_t* const positions = position_ids.As<int32_t>();
  const float sign = backward ? -1.0f : 1.0f;
  const View& tensor = x.tensor;
  pool.ParallelFor(s.tokens, 1, [&](int64_t begin, int64_t end) {
    FloatPiece first_half, second_half;
    for (int64_t t = begin; t < end; ++t) {
      const float *c = table.As<float>() + positions[t] * 2 * s.half, *sines = c + s.half;
      for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t head = x.begin() + t * x.stride() + h * 2 * s.half;
        ForEachPiece(tensor.dtype, 0, s.half, [&](int64_t from, int64_t n) {
          const int64_t at = head + from;
          Rotate(c + from, sines + from, sign, n, FloatsToChange(tensor, at, n, first_half),
                 FloatsToChange(tensor, at + s.half, n, second_half));
          WriteFloats(first_half, n, tensor, at);
          WriteFloats(second_half, n, tensor, at + s.half);
        });
      }
    }
  });
}

}  // namespace

void RopeTable(Stream& stream, const std::vector<double>& frequencies, double factor, View table) {
  constexpr const char* kOp = "rope_table";
  const Arguments args(kOp);
  args.CheckRank("table", table, DType::kFloat32, 3);
  const int64_t positions = table.shape[0];
  args.Check("table", table, DType::kFloat32,
             {positions, 2, static_cast<int64_t>(frequencies.size())});
  const Cost cost{.flops = 100.0 * static_cast<double>(table.NumElements()),
                  .bytes_written = static_cast<double>(table.bytes())};
  const auto half = static_cast<int64_t>(frequencies.size());
  const OnGpu gpu{.launches = positions > 0 ? (half + kRopeFrequencies - 1) / kRopeFrequencies : 0};
  DeviceKernels kernels{.cpu = OnCpu(RopeTableCpu, frequencies, factor, table),
                        .cuda = OnCuda(RopeTableCuda, frequencies, factor, table)};
  stream.Enqueue({kOp, {}, {table}, {{cost, gpu}}, std::move(kernels)});
}

void Rope(Stream& stream, ConstView table, ConstView positions, RopeDirection direction,
          const Heads& x) {
  constexpr const char* kOp = "rope";
  const Arguments args(kOp);
  args.CheckDType("x", x.tensor.dtype, kFloatDTypes);
  CheckHeads(args, "x", x, x.tensor.dtype);
  const Shape& s = x.tensor.shape;
  args.Require(s[3] % 2 == 0, "head_dim is odd");
  args.CheckRank("table", table, DType::kFloat32, 3);
  args.Check("table", table, DType::kFloat32, {table.shape[0], 2, s[3] / 2});
  args.Check("positions", positions, DType::kInt32, {s[0], s[1]});
  args.CheckDisjoint("x", x.tensor, "table", table);
  args.CheckDisjoint("x", x.tensor, "positions", positions);
  const RopeShape shape{s[0] * s[1], x.count, s[3] / 2, table.shape[0]};
  const double n = static_cast<double>(shape.tokens * x.count * s[3]);
  const double bytes = n * static_cast<double>(SizeOf(x.tensor.dtype));
  const Cost cost{.flops = 3 * n,
                  .bytes_read = bytes + static_cast<double>(table.bytes() + positions.bytes()),
                  .bytes_written = bytes};
  const bool backward = direction == RopeDirection::kBackward;
  DeviceKernels kernels{.cpu = OnCpu(RopeCpu, shape, table, positions, backward, x),
                        .cuda = OnCuda(RopeCuda, table, positions, backward, x)};
  stream.Enqueue(
      {kOp, {table, positions}, {x.tensor}, {{cost, {.launches = n > 0}}}, std::move(kernels)});
}

}  // namespace fsdp
