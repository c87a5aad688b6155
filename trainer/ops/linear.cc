#include "trainer/ops/linear.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/linear_cpu.h"
#include "trainer/ops/gelu.h"

namespace fsdp {
namespace {

constexpr DType kF32 = DType::kFloat32;

Shape WeightShape(const LinearShape& s) {
  return s.layout == WeightLayout::kInOut ? Shape{s.in, s.out} : Shape{s.out, s.in};
}

// Of x and y (or their gradients), which fix all other shapes.
LinearShape CheckActivations(const Arguments& arguments, const ConstView& x, const char* y_name,
                             const ConstView& y, WeightLayout layout) {
  arguments.CheckRank("x", x, kF32, 2);
  arguments.CheckRank(y_name, y, kF32, 2);
  const LinearShape shape{x.shape[0], x.shape[1], y.shape[1], layout};
  arguments.Check(y_name, y, kF32, {shape.rows, shape.out});
  return shape;
}

double Flops(const LinearShape& s) { return 2.0 * s.rows * s.in * s.out; }

// Without `u`, of what comes before an activation: none.
void Forward(const char* name, Stream& stream, ConstView x, ConstView w, WeightLayout layout,
             std::optional<ConstView> b, std::optional<View> u, View y) {
  const Arguments arguments(name);
  const LinearShape shape = CheckActivations(arguments, x, "y", y, layout);
  arguments.Check("w", w, kF32, WeightShape(shape));
  arguments.CheckDisjoint("y", y, "x", x);
  arguments.CheckDisjoint("y", y, "w", w);

  Operation operation{.name = name, .reads = {x, w}, .writes = {y}, .cost = {}};
  operation.cost.flops = Flops(shape);
  operation.cost.bytes_read = static_cast<double>(x.bytes() + w.bytes());
  operation.cost.bytes_written = static_cast<double>(y.bytes());
  if (b) {
    arguments.Check("b", *b, kF32, {shape.out});
    arguments.CheckDisjoint("y", y, "b", *b);
    operation.reads.push_back(*b);
    operation.cost.flops += static_cast<double>(shape.rows * shape.out);
    operation.cost.bytes_read += static_cast<double>(b->bytes());
  }
  if (u) {
    arguments.Check("u", *u, kF32, y.shape);
    arguments.CheckDisjoint("u", *u, "x", x);
    arguments.CheckDisjoint("u", *u, "w", w);
    arguments.CheckDisjoint("u", *u, "y", y);
    if (b) arguments.CheckDisjoint("u", *u, "b", *b);
    operation.writes.push_back(*u);
    operation.cost.flops += kGeluForwardFlops * static_cast<double>(shape.rows * shape.out);
    operation.cost.bytes_written += static_cast<double>(u->bytes());
  }
  operation.kernels.cpu = OnCpu(LinearForwardCpu, shape, x, w, b, u, y);
  stream.Enqueue(std::move(operation));
}

// With `u`, dx is the gradient of u.
void Backward(const char* name, Stream& stream, std::optional<ConstView> u, ConstView x,
              ConstView w, WeightLayout layout, ConstView dy, std::optional<View> dx,
              std::optional<View> dw, std::optional<View> db) {
  const Arguments arguments(name);
  const char* dx_name = u ? "du" : "dx";
  const LinearShape shape = CheckActivations(arguments, x, "dy", dy, layout);
  arguments.Check("w", w, kF32, WeightShape(shape));
  arguments.Require(dx || dw || db, "nothing to compute: dx, dw and db are all left out");

  Operation operation{.name = name, .reads = {dy}, .writes = {}, .cost = {}};
  Cost& cost = operation.cost;
  cost.bytes_read = static_cast<double>(dy.bytes());
  if (dx) {
    arguments.Check(dx_name, *dx, kF32, x.shape);
    arguments.CheckDisjoint(dx_name, *dx, "x", x);
    arguments.CheckDisjoint(dx_name, *dx, "w", w);
    arguments.CheckDisjoint(dx_name, *dx, "dy", dy);
    operation.reads.push_back(w);
    operation.writes.push_back(*dx);
    cost.flops += Flops(shape);
    cost.bytes_read += static_cast<double>(w.bytes());
    cost.bytes_written += static_cast<double>(dx->bytes());
  }
  if (u) {
    arguments.Check("u", *u, kF32, x.shape);
    arguments.CheckDisjoint("du", *dx, "u", *u);
    if (dw) arguments.CheckDisjoint("dw", *dw, "u", *u);
    if (db) arguments.CheckDisjoint("db", *db, "u", *u);
    operation.reads.push_back(*u);
    cost.flops += kGeluBackwardFlops * static_cast<double>(shape.rows * shape.in);
    cost.bytes_read += static_cast<double>(u->bytes());
  }
  if (dw) {
    arguments.Check("dw", *dw, kF32, w.shape);
    arguments.CheckDisjoint("dw", *dw, "x", x);
    arguments.CheckDisjoint("dw", *dw, "w", w);
    arguments.CheckDisjoint("dw", *dw, "dy", dy);
    if (dx) arguments.CheckDisjoint("dw", *dw, dx_name, *dx);
    operation.reads.push_back(x);
    operation.writes.push_back(*dw);
    cost.flops += Flops(shape);
    cost.bytes_read += static_cast<double>(x.bytes() + dw->bytes());
    cost.bytes_written += static_cast<double>(dw->bytes());
  }
  if (db) {
    arguments.Check("db", *db, kF32, {shape.out});
    arguments.CheckDisjoint("db", *db, "dy", dy);
    arguments.CheckDisjoint("db", *db, "x", x);
    arguments.CheckDisjoint("db", *db, "w", w);
    if (dx) arguments.CheckDisjoint("db", *db, dx_name, *dx);
    if (dw) arguments.CheckDisjoint("db", *db, "dw", *dw);
    operation.writes.push_back(*db);
    cost.flops += static_cast<double>(shape.rows * shape.out);
    cost.bytes_read += static_cast<double>(db->bytes());
    cost.bytes_written += static_cast<double>(db->bytes());
  }
  operation.kernels.cpu = OnCpu(LinearBackwardCpu, shape, u, x, w, dy, dx, dw, db);
  stream.Enqueue(std::move(operation));
}

}  // namespace

void LinearForward(Stream& stream, ConstView x, ConstView w, WeightLayout layout,
                   std::optional<ConstView> b, View y) {
  Forward("linear_forward", stream, x, w, layout, b, std::nullopt, y);
}

void LinearGeluForward(Stream& stream, ConstView x, ConstView w, WeightLayout layout,
                       std::optional<ConstView> b, View u, View y) {
  Forward("linear_gelu_forward", stream, x, w, layout, b, u, y);
}

void LinearBackward(Stream& stream, ConstView x, ConstView w, WeightLayout layout, ConstView dy,
                    std::optional<View> dx, std::optional<View> dw, std::optional<View> db) {
  Backward("linear_backward", stream, std::nullopt, x, w, layout, dy, dx, dw, db);
}

void LinearGeluBackward(Stream& stream, ConstView u, ConstView x, ConstView w, WeightLayout layout,
                        ConstView dy, View du, std::optional<View> dw, std::optional<View> db) {
  Backward("linear_gelu_backward", stream, u, x, w, layout, dy, du, dw, db);
}

}  // namespace fsdp
