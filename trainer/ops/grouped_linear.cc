#include "trainer/ops/grouped_linear.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "trainer/core/round_up.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/gemm/gemm.h"
#include "trainer/ops/expert_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// The parts of kGroupedBytesPerThread: gathered rows of two operands, and sums.
constexpr int64_t kGatheredBytes = int64_t{2} << 20, kSums = int64_t{1} << 18;
static_assert(2 * kGatheredBytes + kSums * sizeof(float) == kGroupedBytesPerThread);

// Multiplications that are worth another thread (gemm.cc).
constexpr double kMinProductsPerThread = 5e5;
// A group is divided among threads at multiples of this many rows of the result.
constexpr int64_t kBorder = 32;
// A group's weights, which are packed, or its gradient, which is read and written, cost a thread
// about as much as so many rows: 16 groups of 128 rows reach 0.87 of one product's speed.
constexpr double kRowsOfWeights = 16;
constexpr int64_t kLine = 64;  // Bytes of a cache's.
constexpr int64_t kAhead = 2;  // Rows that are fetched before they are gathered.

struct GroupedShape {
  int64_t rows, in, out, width;  // width: of y or dy.
  int64_t experts;

  int64_t WeightAt(int64_t expert) const { return expert * out * in; }
};

// An operand's rows: those of its sources, or its own.
struct RowsOf {
  ConstView view;
  std::optional<ConstView> sources;
  int64_t column, cols;  // Columns [column, column + cols) of the view's.

  int64_t width() const { return view.shape[1]; }
  // Elements from a gathered row to the next: a cache line more than a row, or the rows of a strip
  // would fall into one set of the cache.
  int64_t Stride() const { return cols + kLine / SizeOf(view.dtype); }
  // Rows that are gathered at a time, so that they fit a thread's memory whatever the group.
  int64_t AtATime(int64_t all) const {
    if (!sources) return std::max<int64_t>(1, all);
    return std::max(kBorder, kGatheredBytes / (Stride() * SizeOf(view.dtype)) / kBorder * kBorder);
  }

  // Rows [first, first + count), gathered where they are sources.
  GemmOperand Operand(int64_t first, int64_t count, bool transposed) const {
    if (!sources) return Factor(view, first * width() + column, width(), transposed);
    static thread_local std::vector<std::byte> gathered_rows[2];  // Two factors of one product.
    std::vector<std::byte>& gathered = gathered_rows[transposed ? 1 : 0];
    const int64_t size = SizeOf(view.dtype), row_bytes = Stride() * size;
    const auto needed = static_cast<size_t>(count * row_bytes);
    if (gathered.size() < needed) gathered.resize(needed);
    const int32_t* const source = sources->As<int32_t>() + first;
    for (int64_t r = 0; r < count; ++r) {
      const auto row = [&](int64_t of) {
        return view.data + (source[of] * width() + column) * size;
      };
      const std::byte* const soon = row(std::min(r + kAhead, count - 1));
      for (int64_t i = 0; i < cols * size; i += kLine) __builtin_prefetch(soon + i);
      std::memcpy(gathered.data() + r * row_bytes, row(r), static_cast<size_t>(cols * size));
    }
    return {
        .data = gathered.data(), .stride = Stride(), .transposed = transposed, .dtype = view.dtype};
  }
};

// Calls body(first, count) for pieces of [begin, end) of `most` rows.
template <typename Body>
void ForEachPiece(int64_t begin, int64_t end, int64_t most, const Body& body) {
  for (; begin < end; begin += most) body(begin, std::min(most, end - begin));
}

// Divides a result of `experts` parts of lengths(e) rows, of which each costs costs(e)
// multiplications, among threads: body(expert, begin, end) for rows of one expert's part.
template <typename Lengths, typename Costs, typename Body>
void ForEachPart(ThreadPool& pool, int64_t experts, const Lengths& lengths, const Costs& costs,
                 const Body& body) {
  double total = 0;
  for (int64_t e = 0; e < experts; ++e) total += static_cast<double>(lengths(e)) * costs(e);
  const double most = std::min(total / kMinProductsPerThread, static_cast<double>(pool.size()));
  const int parts = std::max(1, static_cast<int>(most));
  const auto part = [&](int t) {
    if (t >= parts) return;
    double at = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t length = lengths(e);
      const double cost = costs(e), before = at;
      at += static_cast<double>(length) * cost;
      const auto border = [&](int of) {
        const double place = total * of / parts;
        if (place <= before) return int64_t{0};
        if (place >= at) return length;
        const double row = (place - before) / cost;
        return std::min(length, static_cast<int64_t>(row / kBorder + 0.5) * kBorder);
      };
      const int64_t begin = border(t), end = t + 1 == parts ? length : border(t + 1);
      if (begin < end) body(e, begin, end);
    }
  };
  parts == 1 ? part(0) : pool.Run(part);
}

// C's rows = scale rows of A times B of their expert. b_transposed: by w^T, as in forward.
void MultiplyRows(ThreadPool& pool, const GroupedShape& s, const RowsOf& a, const ConstView& w,
                  bool b_transposed, const ConstView& offsets, const View& c, int64_t column,
                  const GroupedOptions& options) {
  const int32_t* const offset = offsets.As<int32_t>();
  const int64_t n = b_transposed ? s.out : s.in, k = b_transposed ? s.in : s.out;
  const double cost = static_cast<double>(n) * static_cast<double>(k);
  ForEachPart(
      pool, s.experts, [&](int64_t e) -> int64_t { return offset[e + 1] - offset[e]; },
      [&](int64_t e) {
        const auto rows = static_cast<double>(offset[e + 1] - offset[e]);
        return cost * (1 + kRowsOfWeights / std::max(1.0, rows));
      },
      [&](int64_t e, int64_t begin, int64_t end) {
        std::optional<GemmOperand> next;
        if (e + 1 < s.experts) next = Factor(w, s.WeightAt(e + 1), s.in, b_transposed);
        const auto multiply = [&](int64_t first, int64_t count) {
          GemmOnOneThread(count, n, k, a.Operand(first, count, false),
                          Factor(w, s.WeightAt(e), s.in, b_transposed),
                          Result(c, first * c.shape[1] + column, c.shape[1]),
                          {.alpha = options.scale,
                           .beta = options.add ? 1.0f : 0.0f,
                           .next_b = next ? next->data : nullptr});
        };
        ForEachPiece(offset[e] + begin, offset[e] + end, a.AtATime(end - begin), multiply);
      });
}

void GroupedForwardCpu(ThreadPool& pool, const GroupedShape& s, const ConstView& x,
                       const std::optional<ConstView>& sources, const ConstView& w,
                       const ConstView& offsets, const View& y, const GroupedOptions& options) {
  MultiplyRows(pool, s, {x, sources, 0, s.in}, w, true, offsets, y, options.column, options);
}

void GroupedDxCpu(ThreadPool& pool, const GroupedShape& s, const ConstView& dy,
                  const std::optional<ConstView>& sources, const ConstView& w,
                  const ConstView& offsets, const View& dx, const GroupedOptions& options) {
  MultiplyRows(pool, s, {dy, sources, options.column, s.out}, w, false, offsets, dx, 0, options);
}

void GroupedDwCpu(ThreadPool& pool, const GroupedShape& s, const ConstView& dy,
                  const std::optional<ConstView>& dy_sources, const ConstView& x,
                  const std::optional<ConstView>& x_sources, const ConstView& offsets,
                  const View& dw, const GroupedOptions& options) {
  const int32_t* const offset = offsets.As<int32_t>();
  const RowsOf left{dy, dy_sources, options.column, s.out}, right{x, x_sources, 0, s.in};
  // Whole rows count, not a thread's part of them: pieces of a sum show in its bits.
  const int64_t at_a_time = std::min(left.AtATime(s.rows), right.AtATime(s.rows));
  // A dw of two bytes is rounded once, when all pieces are in.
  const bool in_sums = dw.dtype != DType::kFloat32 && (dy_sources || x_sources);
  const int64_t outputs = in_sums ? std::max<int64_t>(1, kSums / s.in) : s.out;
  // Rows [o, o + count) of dw_e, which begin at `to`.
  const auto add = [&](int64_t e, int64_t o, int64_t count, const GemmResult& to) {
    RowsOf part = left;
    part.column += o;
    part.cols = count;
    ForEachPiece(offset[e], offset[e + 1], at_a_time, [&](int64_t first, int64_t rows) {
      GemmOnOneThread(count, s.in, rows, part.Operand(first, rows, true),
                      right.Operand(first, rows, false), to, {.alpha = options.scale, .beta = 1});
    });
  };
  ForEachPart(
      pool, s.experts, [&](int64_t) { return s.out; },
      [&](int64_t e) {
        const int64_t rows = offset[e + 1] - offset[e];
        return rows == 0 ? 0 : (static_cast<double>(rows) + kRowsOfWeights) * s.in;
      },
      [&](int64_t e, int64_t begin, int64_t end) {
        static thread_local std::vector<float> sums;
        for (int64_t o = begin; o < end; o += outputs) {
          const int64_t count = std::min(outputs, end - o), at = s.WeightAt(e) + o * s.in;
          if (!in_sums) {
            add(e, o, count, Result(dw, at, s.in));
          } else if (offset[e] < offset[e + 1]) {
            sums.assign(static_cast<size_t>(count * s.in), 0);
            add(e, o, count, {sums.data(), s.in, DType::kFloat32});
            AddFloats(sums.data(), count * s.in, dw, at);
          }
        }
      });
}

// The names of the rows' two operands, as the header spells them.
struct Operands {
  const char *x, *y;
};

// Checks what fixes the shape; `x` and `y` may be gradients. x or y with sources has other rows.
GroupedShape CheckOperands(const Arguments& args, const Operands& names, const ConstView& x,
                           const ConstView& y, const ConstView& w, const ConstView& offsets,
                           const GroupedOptions& options) {
  args.CheckDType(names.x, x.dtype, kFloatDTypes);
  args.CheckRank(names.x, x, x.dtype, 2);
  args.CheckRank(names.y, y, x.dtype, 2);
  args.CheckRank("offsets", offsets, DType::kInt32, 1);
  args.Require(offsets.NumElements() > 1, "offsets has less than two elements");
  args.Require(w.shape.rank() == 2, "weights, want rank 2");
  const int64_t experts = offsets.NumElements() - 1;
  const GroupedShape shape{0, x.shape[1], w.shape[0] / experts, y.shape[1], experts};
  args.Require(shape.out * experts == w.shape[0], "weights, want as many rows for each expert");
  args.Require(options.parts >= 1, "parts, want at least 1");
  args.Require(options.column >= 0 && options.column + shape.out <= shape.width,
               "column, want an expert's outputs within the columns");
  return shape;
}

// Returns the rows that they list; without them the operand's own.
int64_t CheckSources(const Arguments& args, const char* name,
                     const std::optional<ConstView>& sources, const ConstView& operand) {
  if (!sources) return operand.shape[0];
  args.CheckRank(name, *sources, DType::kInt32, 1);
  return sources->NumElements();
}

Operation MakeOperation(const char* name, std::initializer_list<std::optional<ConstView>> reads,
                        const View& write) {
  Operation operation{.name = name, .reads = {}, .writes = {write}, .costs = {}};
  for (const auto& read : reads) {
    if (read) operation.reads.push_back(*read);
  }
  return operation;
}

// The experts' share of all rows, on average.
int64_t Share(int64_t rows, const GroupedOptions& options) {
  return RoundUp(rows, options.parts) / options.parts;
}

double Bytes(std::initializer_list<std::optional<ConstView>> views) {
  double bytes = 0;
  for (const auto& view : views) bytes += view ? static_cast<double>(view->bytes()) : 0;
  return bytes;
}

// So many columns of a tensor's rows.
double BytesOf(int64_t rows, int64_t cols, DType dtype) {
  return static_cast<double>(rows * cols * SizeOf(dtype));
}

}  // namespace

void GroupedForward(Stream& stream, ConstView x, std::optional<ConstView> sources, ConstView w,
                    ConstView offsets, View y, const GroupedOptions& options) {
  constexpr const char* kOp = "grouped_forward";
  const Arguments args(kOp);
  GroupedShape s = CheckOperands(args, {"x", "y"}, x, y, w, offsets, options);
  args.CheckWeight("w", w, x.dtype, {s.experts * s.out, s.in});
  s.rows = CheckSources(args, "sources", sources, x);
  args.Check("y", y, x.dtype, {s.rows, s.width});
  args.CheckDisjoint("y", y, {{"x", x}, {"sources", sources}, {"w", w}, {"offsets", offsets}});
  Operation operation = MakeOperation(kOp, {x, sources, w, offsets}, y);
  const double written = BytesOf(s.rows, s.out, y.dtype);
  const Cost cost{.bytes_read = Bytes({x, sources, w, offsets}) + (options.add ? written : 0),
                  .bytes_written = written};
  operation.costs = {{Product{.name = "forward",
                              .m = Share(s.rows, options),
                              .n = s.out,
                              .k = s.in,
                              .b_transposed = true,
                              .adds = options.add,
                              .dtype = w.dtype,
                              .result = y.dtype,
                              .groups = s.experts},
                      cost}};
  operation.kernels = {.cpu = OnCpu(GroupedForwardCpu, s, x, sources, w, offsets, y, options),
                       .cuda = OnCuda(GroupedForwardCuda, x, sources, w, offsets, y, options)};
  stream.Enqueue(std::move(operation));
}

void GroupedDx(Stream& stream, ConstView dy, std::optional<ConstView> sources, ConstView w,
               ConstView offsets, View dx, const GroupedOptions& options) {
  constexpr const char* kOp = "grouped_dx";
  const Arguments args(kOp);
  GroupedShape s = CheckOperands(args, {"dx", "dy"}, dx, dy, w, offsets, options);
  args.CheckWeight("w", w, dx.dtype, {s.experts * s.out, s.in});
  s.rows = CheckSources(args, "sources", sources, dy);
  args.Check("dx", dx, dx.dtype, {s.rows, s.in});
  args.CheckDisjoint("dx", dx, {{"dy", dy}, {"sources", sources}, {"w", w}, {"offsets", offsets}});
  Operation operation = MakeOperation(kOp, {dy, sources, w, offsets}, dx);
  const double written = Bytes({dx});
  const Cost cost{.bytes_read = BytesOf(dy.shape[0], s.out, dy.dtype) +
                                Bytes({sources, w, offsets}) + (options.add ? written : 0),
                  .bytes_written = written};
  operation.costs = {{Product{.name = "dx",
                              .m = Share(s.rows, options),
                              .n = s.in,
                              .k = s.out,
                              .adds = options.add,
                              .dtype = w.dtype,
                              .result = dx.dtype,
                              .groups = s.experts},
                      cost}};
  operation.kernels = {.cpu = OnCpu(GroupedDxCpu, s, dy, sources, w, offsets, dx, options),
                       .cuda = OnCuda(GroupedDxCuda, dy, sources, w, offsets, dx, options)};
  stream.Enqueue(std::move(operation));
}

void GroupedDw(Stream& stream, ConstView dy, std::optional<ConstView> dy_sources, ConstView x,
               std::optional<ConstView> x_sources, ConstView offsets, View dw,
               const GroupedOptions& options) {
  constexpr const char* kOp = "grouped_dw";
  const Arguments args(kOp);
  GroupedShape s = CheckOperands(args, {"x", "dy"}, x, dy, dw, offsets, options);
  args.CheckGradient("dw", dw, {s.experts * s.out, s.in});
  s.rows = CheckSources(args, "dy_sources", dy_sources, dy);
  args.Require(CheckSources(args, "x_sources", x_sources, x) == s.rows,
               "x and dy have other numbers of rows");
  args.CheckDisjoint("dw", dw,
                     {{"dy", dy},
                      {"dy_sources", dy_sources},
                      {"x", x},
                      {"x_sources", x_sources},
                      {"offsets", offsets}});
  Operation operation = MakeOperation(kOp, {dy, dy_sources, x, x_sources, offsets}, dw);
  const Cost cost{.bytes_read = BytesOf(dy.shape[0], s.out, dy.dtype) +
                                Bytes({dy_sources, x, x_sources, offsets, dw}),
                  .bytes_written = Bytes({dw})};
  operation.costs = {{Product{.name = "dw",
                              .m = s.out,
                              .n = s.in,
                              .k = Share(s.rows, options),
                              .a_transposed = true,
                              .adds = true,
                              .dtype = dy.dtype,
                              .result = dw.dtype,
                              .groups = s.experts},
                      cost}};
  operation.kernels = {
      .cpu = OnCpu(GroupedDwCpu, s, dy, dy_sources, x, x_sources, offsets, dw, options),
      .cuda = OnCuda(GroupedDwCuda, dy, dy_sources, x, x_sources, offsets, dw, options)};
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
