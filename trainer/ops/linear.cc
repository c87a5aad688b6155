#include "trainer/ops/linear.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/linear_cpu.h"
#include "trainer/ops/cuda/linear_cuda.h"
#include "trainer/ops/gelu.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

Shape WeightShape(const LinearShape& s) {
  return s.layout == WeightLayout::kInOut ? Shape{s.in, s.out} : Shape{s.out, s.in};
}

// Checks x and y (or their gradients), which fix all other shapes.
LinearShape CheckActivations(const Arguments& arguments, const ConstView& x, const char* y_name,
                             const ConstView& y, DType y_dtype, WeightLayout layout) {
  arguments.CheckDType("x", x.dtype, kFloatDTypes);
  arguments.CheckRank("x", x, x.dtype, 2);
  arguments.CheckRank(y_name, y, y_dtype, 2);
  const LinearShape shape{x.shape[0], x.shape[1], y.shape[1], layout};
  arguments.Check(y_name, y, y_dtype, {shape.rows, shape.out});
  return shape;
}

// y = x W, dx = dy W^T and dW += x^T dy, each by a call of Gemm(). With an fp32 W beside other
// activations, a product counts as one of fp32.
Product ForwardProduct(const LinearShape& s, DType dtype, DType result) {
  return {.name = "forward",
          .m = s.rows,
          .n = s.out,
          .k = s.in,
          .b_transposed = s.layout == WeightLayout::kOutIn,
          .dtype = dtype,
          .result = result};
}

Product DxProduct(const LinearShape& s, DType dtype, DType result) {
  return {.name = "dx",
          .m = s.rows,
          .n = s.in,
          .k = s.out,
          .b_transposed = s.layout == WeightLayout::kInOut,
          .dtype = dtype,
          .result = result};
}

Product DwProduct(const LinearShape& s, DType dtype, DType result) {
  const bool in_out = s.layout == WeightLayout::kInOut;
  return {.name = "dw",
          .m = in_out ? s.in : s.out,
          .n = in_out ? s.out : s.in,
          .k = s.rows,
          .a_transposed = true,
          .adds = true,
          .dtype = dtype,
          .result = result};
}

// Without `u`, of what comes before an activation: none.
void Forward(const char* name, Stream& stream, ConstView x, ConstView w, WeightLayout layout,
             std::optional<ConstView> b, std::optional<ConstView> residual, std::optional<View> u,
             View y) {
  const Arguments arguments(name);
  const DType y_dtype = !u && !residual && y.dtype == DType::kFloat32 ? y.dtype : x.dtype;
  const LinearShape shape = CheckActivations(arguments, x, "y", y, y_dtype, layout);
  arguments.CheckWeight("w", w, x.dtype, WeightShape(shape));
  arguments.CheckDisjoint("y", y, "x", x);
  arguments.CheckDisjoint("y", y, "w", w);

  Operation operation{.name = name, .reads = {x, w}, .writes = {y}, .costs = {}};
  Product product = ForwardProduct(shape, w.dtype, y.dtype);
  Cost cost{.bytes_read = static_cast<double>(x.bytes() + w.bytes()),
            .bytes_written = static_cast<double>(y.bytes())};
  if (b) {
    arguments.CheckWeight("b", *b, x.dtype, {shape.out});
    arguments.CheckDisjoint("y", y, "b", *b);
    operation.reads.push_back(*b);
    product.bias = true;
    cost.flops += static_cast<double>(shape.rows * shape.out);
    cost.bytes_read += static_cast<double>(b->bytes());
  }
  if (residual) {
    arguments.Check("residual", *residual, x.dtype, y.shape);
    arguments.CheckDisjoint("y", y, "residual", *residual);
    operation.reads.push_back(*residual);
    cost.flops += static_cast<double>(shape.rows * shape.out);
    cost.bytes_read += static_cast<double>(residual->bytes());
  }
  if (u) {
    arguments.Check("u", *u, x.dtype, y.shape);
    arguments.CheckDisjoint("u", *u, "x", x);
    arguments.CheckDisjoint("u", *u, "w", w);
    arguments.CheckDisjoint("u", *u, "y", y);
    if (b) arguments.CheckDisjoint("u", *u, "b", *b);
    operation.writes.push_back(*u);
    product.activation = Product::Activation::kGelu;
    cost.flops += kGeluForwardFlops * static_cast<double>(shape.rows * shape.out);
    cost.bytes_written += static_cast<double>(u->bytes());
  }
  operation.costs = {{product, cost}};
  operation.kernels = {.cpu = OnCpu(LinearForwardCpu, shape, x, w, b, residual, u, y),
                       .cuda = OnCuda(LinearForwardCuda, layout, x, w, b, residual, u, y)};
  stream.Enqueue(std::move(operation));
}

// With `u`, dx is the gradient of u.
void Backward(const char* name, Stream& stream, std::optional<ConstView> u, ConstView x,
              ConstView w, WeightLayout layout, ConstView dy, std::optional<View> dx,
              std::optional<View> dw, std::optional<View> db) {
  const Arguments arguments(name);
  const char* dx_name = u ? "du" : "dx";
  const LinearShape shape = CheckActivations(arguments, x, "dy", dy, x.dtype, layout);
  arguments.CheckWeight("w", w, x.dtype, WeightShape(shape));
  arguments.Require(dx || dw || db, "nothing to compute: dx, dw and db are all left out");

  Operation operation{.name = name, .reads = {dy}, .writes = {}, .costs = {}};
  // For the first kernel that reads it; for the others once more.
  double dy_bytes = static_cast<double>(dy.bytes()), dy_again = 0;
  const auto read_dy = [&] {
    dy_again = static_cast<double>(dy.bytes()) - dy_bytes;
    return std::exchange(dy_bytes, 0);
  };
  Cost dx_cost;
  if (dx) {
    arguments.Check(dx_name, *dx, x.dtype, x.shape);
    arguments.CheckDisjoint(dx_name, *dx, "x", x);
    arguments.CheckDisjoint(dx_name, *dx, "w", w);
    arguments.CheckDisjoint(dx_name, *dx, "dy", dy);
    operation.reads.push_back(w);
    operation.writes.push_back(*dx);
    dx_cost.bytes_read = read_dy() + static_cast<double>(w.bytes());
    dx_cost.bytes_written = static_cast<double>(dx->bytes());
  }
  if (u) {
    arguments.Check("u", *u, x.dtype, x.shape);
    arguments.CheckDisjoint("du", *dx, "u", *u);
    if (dw) arguments.CheckDisjoint("dw", *dw, "u", *u);
    if (db) arguments.CheckDisjoint("db", *db, "u", *u);
    operation.reads.push_back(*u);
    dx_cost.flops += kGeluBackwardFlops * static_cast<double>(shape.rows * shape.in);
    dx_cost.bytes_read += static_cast<double>(u->bytes());
  }
  if (dx) {
    Product product = DxProduct(shape, w.dtype, dx->dtype);
    if (u) product.activation = Product::Activation::kGeluBackward;
    operation.costs.emplace_back(product, dx_cost);
  }
  if (dw) {
    arguments.CheckGradient("dw", *dw, w.shape);
    arguments.CheckDisjoint("dw", *dw, "x", x);
    arguments.CheckDisjoint("dw", *dw, "w", w);
    arguments.CheckDisjoint("dw", *dw, "dy", dy);
    if (dx) arguments.CheckDisjoint("dw", *dw, dx_name, *dx);
    operation.reads.push_back(x);
    operation.writes.push_back(*dw);
    const Cost cost{.bytes_read = read_dy() + static_cast<double>(x.bytes() + dw->bytes()),
                    .bytes_written = static_cast<double>(dw->bytes())};
    operation.costs.emplace_back(DwProduct(shape, dy.dtype, dw->dtype), cost, dy_again);
  }
  if (db) {
    arguments.CheckGradient("db", *db, {shape.out});
    arguments.CheckDisjoint("db", *db, "dy", dy);
    arguments.CheckDisjoint("db", *db, "x", x);
    arguments.CheckDisjoint("db", *db, "w", w);
    if (dx) arguments.CheckDisjoint("db", *db, dx_name, *dx);
    if (dw) arguments.CheckDisjoint("db", *db, "dw", *dw);
    operation.writes.push_back(*db);
    const Cost cost{.flops = static_cast<double>(shape.rows * shape.out),
                    .bytes_read = read_dy() + static_cast<double>(db->bytes()),
                    .bytes_written = static_cast<double>(db->bytes())};
    operation.costs.emplace_back(cost, OnGpu{.launches = shape.out > 0, .extra_bytes = dy_again});
  }
  operation.kernels = {.cpu = OnCpu(LinearBackwardCpu, shape, u, x, w, dy, dx, dw, db),
                       .cuda = OnCuda(LinearBackwardCuda, layout, u, x, w, dy, dx, dw, db)};
  stream.Enqueue(std::move(operation));
}

}  // namespace

void LinearForward(Stream& stream, ConstView x, ConstView w, WeightLayout layout,
                   std::optional<ConstView> b, View y) {
  Forward("linear_forward", stream, x, w, layout, b, std::nullopt, std::nullopt, y);
}

void LinearResidualForward(Stream& stream, ConstView x, ConstView w, WeightLayout layout,
                           std::optional<ConstView> b, ConstView residual, View y) {
  Forward("linear_residual_forward", stream, x, w, layout, b, residual, std::nullopt, y);
}

void LinearGeluForward(Stream& stream, ConstView x, ConstView w, WeightLayout layout,
                       std::optional<ConstView> b, View u, View y) {
  Forward("linear_gelu_forward", stream, x, w, layout, b, std::nullopt, u, y);
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
