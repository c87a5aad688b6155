#include "trainer/ops/norm.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/norm_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// kMean: LayerNorm; otherwise RMSNorm, without mean and bias. The two divide by the number of
// columns in different ways, which decide their bits.
template <bool kMean>
float OverColumns(float sum, int64_t cols) {
  return kMean ? sum * (1.0f / static_cast<float>(cols)) : sum / static_cast<float>(cols);
}
template <bool kMean>
float Centred(float x, float mean) {
  return kMean ? x - mean : x;
}

template <bool kMean>
void ForwardRow(const float* x, const float* w, const float* b, float eps, int64_t cols, float* y,
                float* mean, float* r_out) {
  float m = 0;
  if constexpr (kMean) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < cols; ++j) sum += x[j];
    m = OverColumns<kMean>(sum, cols);
    *mean = m;
  }
  // A second pass, not mean(x^2) - mean^2: that loses every digit where the mean is large.
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t j = 0; j < cols; ++j) squares += Centred<kMean>(x[j], m) * Centred<kMean>(x[j], m);
  const float r = 1.0f / std::sqrt(OverColumns<kMean>(squares, cols) + eps);
#pragma omp simd
  for (int64_t j = 0; j < cols; ++j) {
    const float xhat = Centred<kMean>(x[j], m) * r;
    y[j] = kMean ? xhat * w[j] + b[j] : w[j] * xhat;
  }
  *r_out = r;
}

// dx may be dy: an element of dy is read before its dx is written. dw and db are not.
template <bool kMean, bool kAdd>
void BackwardRow(const float* x, const float* w, float mean, float r, const float* dy, int64_t cols,
                 float* dx, float* __restrict dw, float* __restrict db) {
  float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (int64_t j = 0; j < cols; ++j) {
    const float xhat = Centred<kMean>(x[j], mean) * r, g = w[j] * dy[j];
    if constexpr (kMean) sum += g;
    dot += g * xhat;
    dw[j] += dy[j] * xhat;
    if constexpr (kMean) db[j] += dy[j];
  }
  const float mean_g = OverColumns<kMean>(sum, cols), mean_gx = OverColumns<kMean>(dot, cols);
#pragma omp simd
  for (int64_t j = 0; j < cols; ++j) {
    const float xhat = Centred<kMean>(x[j], mean) * r;
    const float d = r * (Centred<kMean>(w[j] * dy[j], mean_g) - xhat * mean_gx);
    dx[j] = kAdd ? dx[j] + d : d;
  }
}

void ForwardCpu(ThreadPool& pool, const NormShape& s, const NormRows<ConstView>& x,
                const ConstView& w, const std::optional<ConstView>& b, float eps,
                const NormRows<View>& y, const std::optional<View>& mean, const View& r) {
  pool.ParallelFor(s.rows(), 1, [&](int64_t begin, int64_t end) {
    RowBuffers buffers(x.tensor.dtype, 4, s.cols);
    const float* const weight = ReadFloats(w, 0, s.cols, buffers[0]);
    const float* const bias = b ? ReadFloats(*b, 0, s.cols, buffers[1]) : nullptr;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t to = s.At(i, y);
      float* out = FloatsToWrite(y.tensor, to, buffers[3]);
      (b ? ForwardRow<true>
         : ForwardRow<false>)(ReadFloats(x.tensor, s.At(i, x), s.cols, buffers[2]), weight, bias,
                              eps, s.cols, out, mean ? mean->As<float>() + i : nullptr,
                              r.As<float>() + i);
      WriteFloats(out, s.cols, y.tensor, to);
    }
  });
}

// `workspace`: norm_backends.h.
void BackwardCpu(ThreadPool& pool, const NormShape& s, const NormRows<ConstView>& x,
                 const ConstView& w, const std::optional<ConstView>& mean, const ConstView& r,
                 const NormRows<ConstView>& dy, int64_t blocks, bool add, const NormRows<View>& dx,
                 const std::optional<View>& dw, const std::optional<View>& db,
                 const View& workspace) {
  float* const partial = workspace.As<float>();
  const int64_t rows = s.rows(), sums = mean ? 2 : 1;
  const auto row = mean ? (add ? BackwardRow<true, true> : BackwardRow<true, false>)
                        : (add ? BackwardRow<false, true> : BackwardRow<false, false>);
  pool.ParallelFor(blocks, 1, [&](int64_t first, int64_t last) {
    RowBuffers buffers(x.tensor.dtype, 4, s.cols);
    const float* const weight = ReadFloats(w, 0, s.cols, buffers[0]);
    for (int64_t block = first; block < last; ++block) {
      float* block_dw = partial + block * sums * s.cols;
      float* block_db = mean ? block_dw + s.cols : nullptr;
      std::fill(block_dw, block_dw + sums * s.cols, 0.0f);
      for (int64_t i = rows * block / blocks; i < rows * (block + 1) / blocks; ++i) {
        const int64_t to = s.At(i, dx);
        float* out = add ? FloatsToChange(dx.tensor, to, s.cols, buffers[3])
                         : FloatsToWrite(dx.tensor, to, buffers[3]);
        row(ReadFloats(x.tensor, s.At(i, x), s.cols, buffers[1]), weight,
            mean ? mean->As<float>()[i] : 0.0f, r.As<float>()[i],
            ReadFloats(dy.tensor, s.At(i, dy), s.cols, buffers[2]), s.cols, out, block_dw,
            block_db);
        WriteFloats(out, s.cols, dx.tensor, to);
      }
    }
  });
  // The first block's sums take the others' in order; then the whole is added once.
  pool.ParallelFor(s.cols, 64, [&](int64_t begin, int64_t end) {
    for (int64_t part = 0; part < sums; ++part) {
      const std::optional<View>& out = part == 0 ? dw : db;
      if (!out) continue;
      float* sum = partial + part * s.cols;
      for (int64_t block = 1; block < blocks; ++block) {
        const float* next = partial + (sums * block + part) * s.cols;
#pragma omp simd
        for (int64_t j = begin; j < end; ++j) sum[j] += next[j];
      }
      AddFloats(sum + begin, end - begin, *out, begin);
    }
  });
}

// The number of blocks of rows that are summed apart for the gradients of parameters: enough for 32
// threads or a GPU's processors, and few enough that adding them up is cheap beside the rows.
int64_t BlocksOf(int64_t rows, DeviceType device) {
  return std::clamp<int64_t>(rows / 16, 1, device == DeviceType::kCuda ? 512 : 32);
}

int64_t WorkspaceBytes(const Arguments& args, int64_t rows, int64_t cols, int sums, DType dtype,
                       DeviceType device) {
  args.CheckHasKernels("x", dtype, kFloatDTypes, device);
  return BlocksOf(rows, device) * sums * cols * static_cast<int64_t>(sizeof(float));
}

template <typename AnyView>
NormRows<AnyView> Of(const AnyView& matrix) {
  return {matrix, 0, matrix.shape[1]};
}
template <typename AnyView>
NormRows<AnyView> Of(const BasicHeads<AnyView>& heads) {
  return {heads.tensor, heads.begin(), heads.stride()};
}

struct Sizes {
  NormShape shape;
  Shape r;
};

Sizes CheckMatrix(const Arguments& args, const ConstView& x) {
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank("x", x, x.dtype, 2);
  args.Require(x.shape[1] > 0, "x has no columns");
  return {{x.shape[0], 1, x.shape[1]}, Shape{x.shape[0]}};
}

// A weight as wide as all heads makes them one row.
Sizes CheckHeads(const Arguments& args, const ConstHeads& x, const ConstView& w) {
  args.CheckDType("x", x.tensor.dtype, kFloatDTypes);
  fsdp::CheckHeads(args, "x", x, x.tensor.dtype);
  const Shape& s = x.tensor.shape;
  args.Require(s[3] > 0, "x has no columns");
  args.Require(x.count > 0, "x has no heads");
  const bool together = w.NumElements() == x.count * s[3];
  const int64_t rows = together ? 1 : x.count;
  return {{s[0] * s[1], rows, x.count / rows * s[3]}, Shape{s[0], s[1], rows}};
}

// The same numbers of heads and of rows.
void CheckLike(const Arguments& args, const char* name, const ConstHeads& y, const ConstHeads& x) {
  fsdp::CheckHeads(args, name, y, x.tensor.dtype);
  const Shape& s = x.tensor.shape;
  args.Check(name, y.tensor, x.tensor.dtype, {s[0], s[1], y.tensor.shape[2], s[3]});
  if (y.count != x.count) {
    args.Fail(std::string(name) + " has " + std::to_string(y.count) + " heads, want " +
              std::to_string(x.count));
  }
}

double Elements(const NormShape& s) { return static_cast<double>(s.rows() * s.cols); }

// Bytes of the rows. Elements between the heads of a tensor do not count.
double BytesOf(const ConstView& view, const NormShape& s) {
  return Elements(s) * static_cast<double>(SizeOf(view.dtype));
}
template <typename AnyView>
double BytesOf(const std::optional<AnyView>& view) {
  return view ? static_cast<double>(view->bytes()) : 0;
}

void Forward(Stream& stream, const Arguments& args, const char* op, const Sizes& sizes,
             const NormRows<ConstView>& x, ConstView w, std::optional<ConstView> b, float eps,
             const NormRows<View>& y, std::optional<View> mean, View r) {
  const NormShape shape = sizes.shape;
  args.CheckWeight("w", w, x.tensor.dtype, {shape.cols});
  if (b) args.CheckWeight("b", *b, x.tensor.dtype, {shape.cols});
  if (mean) args.Check("mean", *mean, DType::kFloat32, sizes.r);
  args.Check("r", r, DType::kFloat32, sizes.r);
  args.CheckDisjoint("r", r, "x", x.tensor);
  args.CheckDisjoint("r", r, "y", y.tensor);
  args.CheckDisjoint("y", y.tensor, "w", w);
  Operation operation{op, {x.tensor, w}, {y.tensor}, {}};
  if (b) operation.reads.push_back(*b);
  if (mean) operation.writes.push_back(*mean);
  operation.writes.push_back(r);
  const Cost cost{
      .flops = (mean ? 8 : 4) * Elements(shape),
      .bytes_read = BytesOf(x.tensor, shape) + BytesOf(b) + static_cast<double>(w.bytes()),
      .bytes_written = BytesOf(y.tensor, shape) + BytesOf(mean) + static_cast<double>(r.bytes())};
  operation.costs = {{cost, OnGpu{.launches = shape.rows() > 0}}};
  operation.kernels = {.cpu = OnCpu(ForwardCpu, shape, x, w, b, eps, y, mean, r),
                       .cuda = OnCuda(NormForwardCuda, shape, x, w, b, eps, y, mean, r)};
  stream.Enqueue(std::move(operation));
}

void Backward(Stream& stream, const Arguments& args, const char* op, const Sizes& sizes,
              const NormRows<ConstView>& x, ConstView w, std::optional<ConstView> mean, ConstView r,
              const NormRows<ConstView>& dy, bool add, const NormRows<View>& dx,
              std::optional<View> dw, std::optional<View> db, View workspace) {
  const NormShape shape = sizes.shape;
  const DeviceType device = stream.device().kernel_type();
  const int sums = mean ? 2 : 1;  // Those of dw, and of db.
  args.CheckWeight("w", w, x.tensor.dtype, {shape.cols});
  if (mean) args.Check("mean", *mean, DType::kFloat32, sizes.r);
  args.Check("r", r, DType::kFloat32, sizes.r);
  args.CheckWorkspace(workspace,
                      WorkspaceBytes(args, shape.rows(), shape.cols, sums, x.tensor.dtype, device));
  args.CheckDisjoint("dx", dx.tensor, "x", x.tensor);
  Operation operation{op, {x.tensor, w}, {dx.tensor, workspace}, {}};
  if (mean) operation.reads.push_back(*mean);
  operation.reads.insert(operation.reads.end(), {r, dy.tensor});
  for (const auto& [name, view] : {std::pair("dw", dw), std::pair("db", db)}) {
    if (!view) continue;
    args.CheckGradient(name, *view, {shape.cols});
    operation.writes.push_back(*view);
  }
  const double parameters = BytesOf(dw) + BytesOf(db), dx_bytes = BytesOf(dx.tensor, shape);
  const Cost cost{.flops = (mean ? 16 : 10) * Elements(shape),
                  .bytes_read = BytesOf(x.tensor, shape) + BytesOf(dy.tensor, shape) +
                                (add ? dx_bytes : 0) + BytesOf(mean) +
                                static_cast<double>(w.bytes() + r.bytes()) + parameters,
                  .bytes_written = dx_bytes + parameters};
  const int64_t blocks = BlocksOf(shape.rows(), device);
  // Sums of blocks of rows, for both where either is wanted; a launch for each adds up its own.
  const int wanted = (dw ? 1 : 0) + (db ? 1 : 0);
  const double parts = wanted > 0 ? sums + wanted : 0;
  operation.costs = {
      {cost,
       {.launches = 1 + wanted,
        .extra_bytes = parts * sizeof(float) * static_cast<double>(blocks * shape.cols)}}};
  operation.kernels = {
      .cpu = OnCpu(BackwardCpu, shape, x, w, mean, r, dy, blocks, add, dx, dw, db, workspace),
      .cuda =
          OnCuda(NormBackwardCuda, shape, x, w, mean, r, dy, blocks, add, dx, dw, db, workspace)};
  stream.Enqueue(std::move(operation));
}

constexpr const char* kLayerForward = "layer_norm_forward";
constexpr const char* kLayerBackward = "layer_norm_backward";
constexpr const char* kRmsForward = "rms_norm_forward";
constexpr const char* kRmsBackward = "rms_norm_backward";

Sizes CheckForward(const Arguments& args, const ConstView& x, const ConstView& y) {
  const Sizes sizes = CheckMatrix(args, x);
  args.Check("y", y, x.dtype, x.shape);
  args.CheckSameOrDisjoint("y", y, "x", x);
  return sizes;
}

Sizes CheckBackward(const Arguments& args, const ConstView& x, const ConstView& dy,
                    const ConstView& dx) {
  const Sizes sizes = CheckMatrix(args, x);
  args.Check("dy", dy, x.dtype, x.shape);
  args.Check("dx", dx, x.dtype, x.shape);
  args.CheckSameOrDisjoint("dx", dx, "dy", dy);
  return sizes;
}

}  // namespace

void LayerNormForward(Stream& stream, ConstView x, ConstView w, ConstView b, float eps, View y,
                      View mean, View r) {
  const Arguments args(kLayerForward);
  const Sizes sizes = CheckForward(args, x, y);
  args.Require(eps >= kMinLayerNormEps, "eps, want >= kMinLayerNormEps");
  Forward(stream, args, kLayerForward, sizes, Of(x), w, b, eps, Of(y), mean, r);
}

void RmsNormForward(Stream& stream, ConstView x, ConstView w, float eps, View y, View r) {
  const Arguments args(kRmsForward);
  const Sizes sizes = CheckForward(args, x, y);
  args.Require(eps >= 0, "eps is negative");
  Forward(stream, args, kRmsForward, sizes, Of(x), w, {}, eps, Of(y), {}, r);
}

void RmsNormForward(Stream& stream, const ConstHeads& x, ConstView w, float eps, const Heads& y,
                    View r) {
  const Arguments args(kRmsForward);
  const Sizes sizes = CheckHeads(args, x, w);
  CheckLike(args, "y", y, x);
  args.CheckSameOrDisjoint("y", y.tensor, "x", x.tensor);
  args.Require(eps >= 0, "eps is negative");
  Forward(stream, args, kRmsForward, sizes, Of(x), w, {}, eps, Of(y), {}, r);
}

int64_t LayerNormBackwardWorkspaceBytes(int64_t rows, int64_t cols, DType dtype,
                                        DeviceType device) {
  return WorkspaceBytes(Arguments(kLayerBackward), rows, cols, 2, dtype, device);
}

int64_t RmsNormBackwardWorkspaceBytes(int64_t rows, int64_t cols, DType dtype, DeviceType device) {
  return WorkspaceBytes(Arguments(kRmsBackward), rows, cols, 1, dtype, device);
}

void LayerNormBackward(Stream& stream, ConstView x, ConstView w, ConstView mean, ConstView r,
                       ConstView dy, NormDx mode, View dx, std::optional<View> dw,
                       std::optional<View> db, View workspace) {
  const Arguments args(kLayerBackward);
  const Sizes sizes = CheckBackward(args, x, dy, dx);
  Backward(stream, args, kLayerBackward, sizes, Of(x), w, mean, r, Of(dy), mode == NormDx::kAdd,
           Of(dx), dw, db, workspace);
}

void RmsNormBackward(Stream& stream, ConstView x, ConstView w, ConstView r, ConstView dy,
                     NormDx mode, View dx, std::optional<View> dw, View workspace) {
  const Arguments args(kRmsBackward);
  const Sizes sizes = CheckBackward(args, x, dy, dx);
  Backward(stream, args, kRmsBackward, sizes, Of(x), w, {}, r, Of(dy), mode == NormDx::kAdd, Of(dx),
           dw, {}, workspace);
}

void RmsNormBackward(Stream& stream, const ConstHeads& x, ConstView w, ConstView r,
                     const ConstHeads& dy, const Heads& dx, std::optional<View> dw,
                     View workspace) {
  const Arguments args(kRmsBackward);
  const Sizes sizes = CheckHeads(args, x, w);
  CheckLike(args, "dy", dy, x);
  CheckLike(args, "dx", dx, x);
  args.CheckSameOrDisjoint("dx", dx.tensor, "dy", dy.tensor);
  Backward(stream, args, kRmsBackward, sizes, Of(x), w, {}, r, Of(dy), false, Of(dx), dw, {},
           workspace);
}

}  // namespace fsdp
