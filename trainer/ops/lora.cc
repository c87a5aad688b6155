#include "trainer/ops/lora.h"

#include <utility>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/gemm/gemm.h"
#include "trainer/ops/linear_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

struct LoraShape {
  int64_t rows, in, out, rank;
  int64_t cols;    // Columns of y: the stride of its rows.
  int64_t column;  // The adapter's first column of y.
};

void LoraForwardCpu(ThreadPool& pool, const LoraShape& s, const ConstView& x, const ConstView& a,
                    const ConstView& b, float scale, const View& u, const View& y) {
  Gemm(pool, s.rows, s.rank, s.in, Factor(x, 0, s.in), Transposed(a, 0, s.in),
       Result(u, 0, s.rank));
  Gemm(pool, s.rows, s.out, s.rank, Factor(u, 0, s.rank), Transposed(b, 0, s.rank),
       Result(y, s.column, s.cols), {.alpha = scale, .beta = 1});
}

// `workspace`: v, [rows, rank].
void LoraBackwardCpu(ThreadPool& pool, const LoraShape& s, const ConstView& x, const ConstView& u,
                     const ConstView& a, const ConstView& b, float scale, const ConstView& dy,
                     const View& dx, const std::optional<View>& da, const std::optional<View>& db,
                     const View& workspace) {
  const View v(workspace.data, u.dtype, u.shape);
  Gemm(pool, s.rows, s.rank, s.out, Factor(dy, s.column, s.cols), Factor(b, 0, s.rank),
       Result(v, 0, s.rank), {.alpha = scale});
  Gemm(pool, s.rows, s.in, s.rank, Factor(v, 0, s.rank), Factor(a, 0, s.in), Result(dx, 0, s.in),
       {.beta = 1});
  if (da) {
    Gemm(pool, s.rank, s.in, s.rows, Transposed(v, 0, s.rank), Factor(x, 0, s.in),
         Result(*da, 0, s.in), {.beta = 1});
  }
  if (db) {
    Gemm(pool, s.out, s.rank, s.rows, Transposed(dy, s.column, s.cols), Factor(u, 0, s.rank),
         Result(*db, 0, s.rank), {.alpha = scale, .beta = 1});
  }
}

LoraShape CheckOperands(const Arguments& args, const ConstView& x, const ConstView& a,
                        const ConstView& b, const ConstView& u, const char* y_name,
                        const ConstView& y, int64_t column) {
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank("x", x, x.dtype, 2);
  args.CheckRank("a", a, a.dtype, 2);
  args.CheckRank("b", b, b.dtype, 2);
  args.CheckRank(y_name, y, x.dtype, 2);
  const LoraShape s{x.shape[0], x.shape[1], b.shape[0], a.shape[0], y.shape[1], column};
  args.CheckWeight("a", a, x.dtype, {s.rank, s.in});
  args.CheckWeight("b", b, x.dtype, {s.out, s.rank});
  args.Check("u", u, x.dtype, {s.rows, s.rank});
  args.Check(y_name, y, x.dtype, {s.rows, s.cols});
  args.Require(s.rank > 0, "a has no rows");
  args.Require(column >= 0 && s.out <= s.cols - column, "the adapter's columns are not all in y");
  return s;
}

// Bytes of the adapter's columns of y or dy.
double OutBytes(const LoraShape& s, const ConstView& y) {
  return static_cast<double>(s.rows * s.out * SizeOf(y.dtype));
}

double Bytes(const ConstView& view) { return static_cast<double>(view.bytes()); }

}  // namespace

void LoraForward(Stream& stream, ConstView x, ConstView a, ConstView b, float scale, int64_t column,
                 View u, View y) {
  const Arguments args("lora_forward");
  const LoraShape shape = CheckOperands(args, x, a, b, u, "y", y, column);
  for (const auto& [name, view] : {std::pair("x", x), std::pair("a", a), std::pair("b", b)}) {
    args.CheckDisjoint("u", u, name, view);
    args.CheckDisjoint("y", y, name, view);
  }
  args.CheckDisjoint("u", u, "y", y);
  const auto [rows, in, out, rank, cols, first] = shape;
  const double out_bytes = OutBytes(shape, y);
  std::vector<KernelCost> costs = {
      {{.name = "u",
        .m = rows,
        .n = rank,
        .k = in,
        .b_transposed = true,
        .dtype = a.dtype,
        .result = u.dtype},
       {.bytes_read = Bytes(x) + Bytes(a), .bytes_written = Bytes(u)}},
      {{.name = "y",
        .m = rows,
        .n = out,
        .k = rank,
        .b_transposed = true,
        .adds = true,
        .dtype = b.dtype,
        .result = y.dtype},
       {.bytes_read = Bytes(b) + out_bytes, .bytes_written = out_bytes},
       Bytes(u)}};
  stream.Enqueue({"lora_forward",
                  {x, a, b},
                  {u, y},
                  std::move(costs),
                  {.cpu = OnCpu(LoraForwardCpu, shape, x, a, b, scale, u, y),
                   .cuda = OnCuda(LoraForwardCuda, x, a, b, scale, column, u, y)}});
}

int64_t LoraBackwardWorkspaceBytes(int64_t rows, int64_t rank, DType dtype, DeviceType device) {
  Arguments("lora_backward").CheckHasKernels("u", dtype, kFloatDTypes, device);
  return rows * rank * SizeOf(dtype);
}

void LoraBackward(Stream& stream, ConstView x, ConstView u, ConstView a, ConstView b, float scale,
                  ConstView dy, int64_t column, View dx, std::optional<View> da,
                  std::optional<View> db, View workspace) {
  const Arguments args("lora_backward");
  const LoraShape shape = CheckOperands(args, x, a, b, u, "dy", dy, column);
  args.Check("dx", dx, x.dtype, x.shape);
  args.CheckWorkspace(workspace, LoraBackwardWorkspaceBytes(shape.rows, shape.rank, u.dtype,
                                                            stream.device().kernel_type()));
  Operation operation{"lora_backward", {x, u, a, b, dy}, {dx, workspace}, {}};
  const auto [rows, in, out, rank, cols, first] = shape;
  const double v_bytes = Bytes(u);
  operation.costs = {
      {{.name = "v", .m = rows, .n = rank, .k = out, .dtype = b.dtype, .result = u.dtype},
       {.bytes_read = OutBytes(shape, dy) + Bytes(b)},
       v_bytes},
      {{.name = "dx",
        .m = rows,
        .n = in,
        .k = rank,
        .adds = true,
        .dtype = a.dtype,
        .result = dx.dtype},
       {.bytes_read = Bytes(a) + Bytes(dx), .bytes_written = Bytes(dx)},
       v_bytes}};
  if (da) {
    args.CheckGradient("da", *da, a.shape);
    operation.writes.push_back(*da);
    operation.costs.emplace_back(
        Product{.name = "da",
                .m = rank,
                .n = in,
                .k = rows,
                .a_transposed = true,
                .adds = true,
                .dtype = x.dtype,
                .result = da->dtype},
        Cost{.bytes_read = Bytes(x) + Bytes(*da), .bytes_written = Bytes(*da)}, v_bytes);
  }
  if (db) {
    args.CheckGradient("db", *db, b.shape);
    operation.writes.push_back(*db);
    operation.costs.emplace_back(
        Product{.name = "db",
                .m = out,
                .n = rank,
                .k = rows,
                .a_transposed = true,
                .adds = true,
                .dtype = dy.dtype,
                .result = db->dtype},
        Cost{.bytes_read = Bytes(u) + Bytes(*db), .bytes_written = Bytes(*db)},
        OutBytes(shape, dy));
  }
  if (da && db) args.CheckDisjoint("da", *da, "db", *db);
  const auto apart = [&](const char* name, const View& result) {
    for (const auto& [other, view] : {std::pair("x", x), std::pair("u", u), std::pair("a", a),
                                      std::pair("b", b), std::pair("dy", dy)}) {
      args.CheckDisjoint(name, result, other, view);
    }
    args.CheckDisjoint(name, result, "workspace", workspace);
  };
  apart("dx", dx);
  for (const auto& [name, view] : {std::pair("da", da), std::pair("db", db)}) {
    if (!view) continue;
    apart(name, *view);
    args.CheckDisjoint(name, *view, "dx", dx);
  }
  operation.kernels = {
      .cpu = OnCpu(LoraBackwardCpu, shape, x, u, a, b, scale, dy, dx, da, db, workspace),
      .cuda = OnCuda(LoraBackwardCuda, x, u, a, b, scale, dy, column, dx, da, db, workspace)};
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
