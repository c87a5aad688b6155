#include "trainer/ops/linear.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "trainer/ops/activations.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/activation_elements.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/gemm/gemm.h"
#include "trainer/ops/linear_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

struct LinearShape {
  int64_t rows, in, out;
  WeightLayout layout;
};

GemmOperand Weight(const LinearShape& s, const ConstView& w) {
  return s.layout == WeightLayout::kInOut ? Factor(w, 0, s.out) : Transposed(w, 0, s.in);
}

// db[j] += sum_i dy[i, j] for columns [begin, end). Rows are summed in blocks, because one running
// float32 sum would lose a digit over thousands of rows. The order depends on the number of rows
// alone.
void AddColumnSums(const ConstView& dy, int64_t rows, int64_t cols, int64_t begin, int64_t end,
                   const View& db) {
  constexpr int64_t kCols = 256, kRows = 32;
  float total[kCols], block[kCols], buffer[kCols];
  for (int64_t c = begin; c < end; c += kCols) {
    const int64_t n = std::min(kCols, end - c);
    std::fill_n(total, n, 0.0f);
    for (int64_t r = 0; r < rows; r += kRows) {
      std::fill_n(block, n, 0.0f);
      for (int64_t i = r; i < std::min(rows, r + kRows); ++i) {
        const float* row = ReadFloats(dy, i * cols + c, n, buffer);
        for (int64_t j = 0; j < n; ++j) block[j] += row[j];
      }
      for (int64_t j = 0; j < n; ++j) total[j] += block[j];
    }
    AddFloats(total, n, db, c);
  }
}

// Calls body(begin, end) for the tile's rows in a tensor of `cols` columns.
template <typename Body>
void ForEachRow(const GemmTile& tile, int64_t cols, const Body& body) {
  for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
    const int64_t at = i * cols + tile.col;
    body(at, at + tile.cols);
  }
}

void LinearForwardCpu(ThreadPool& pool, const LinearShape& s, const ConstView& x,
                      const ConstView& w, const std::optional<ConstView>& b,
                      const std::optional<ConstView>& residual, const std::optional<View>& u,
                      const View& y) {
  RowBuffers bias(b ? b->dtype : DType::kFloat32, 1, s.out);
  GemmOptions options{.bias = b ? ReadFloats(*b, 0, s.out, bias[0]) : nullptr,
                      .added = residual ? residual->data : nullptr};
  if (u) {
    options.finished_with = y.data;
    options.finish = [&](const GemmTile& tile) {
      ForEachRow(tile, s.out, [&](int64_t begin, int64_t end) {
        ActivationForwardElements(Activation::kGelu, *u, begin, end, y);
      });
    };
  }
  Gemm(pool, s.rows, s.out, s.in, Factor(x, 0, s.in), Weight(s, w), Result(u ? *u : y, 0, s.out),
       options);
}

void LinearBackwardCpu(ThreadPool& pool, const LinearShape& s, const std::optional<ConstView>& u,
                       const ConstView& x, const ConstView& w, const ConstView& dy,
                       const std::optional<View>& dx, const std::optional<View>& dw,
                       const std::optional<View>& db) {
  if (dx) {
    GemmOperand weight = Weight(s, w);
    weight.transposed = !weight.transposed;
    GemmOptions options;
    if (u) {
      options.finished_with = u->data;
      options.finish = [&](const GemmTile& tile) {
        ForEachRow(tile, s.in, [&](int64_t begin, int64_t end) {
          ActivationBackwardElements(Activation::kGelu, *u, *dx, begin, end, *dx);
        });
      };
    }
    Gemm(pool, s.rows, s.in, s.out, Factor(dy, 0, s.out), weight, Result(*dx, 0, s.in), options);
  }
  if (dw && s.layout == WeightLayout::kInOut) {
    Gemm(pool, s.in, s.out, s.rows, Transposed(x, 0, s.in), Factor(dy, 0, s.out),
         Result(*dw, 0, s.out), {.beta = 1});
  } else if (dw) {
    Gemm(pool, s.out, s.in, s.rows, Transposed(dy, 0, s.out), Factor(x, 0, s.in),
         Result(*dw, 0, s.in), {.beta = 1});
  }
  if (db) {
    constexpr int64_t kCacheLine = 16;
    pool.ParallelFor(s.out, kCacheLine, [&](int64_t begin, int64_t end) {
      AddColumnSums(dy, s.rows, s.out, begin, end, *db);
    });
  }
}

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
  const DType dy_dtype = !u && dy.dtype == DType::kFloat32 ? dy.dtype : x.dtype;
  const LinearShape shape = CheckActivations(arguments, x, "dy", dy, dy_dtype, layout);
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
    const DType dtype = dy.dtype == DType::kFloat32 ? dy.dtype : w.dtype;
    Product product = DxProduct(shape, dtype, dx->dtype);
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
