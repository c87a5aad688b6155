#include "trainer/ops/rope.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/rope_cpu.h"
#include "trainer/ops/cuda/rope_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

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
