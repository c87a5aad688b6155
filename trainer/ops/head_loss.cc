#include "trainer/ops/head_loss.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/gemm/gemm.h"
#include "trainer/ops/cpu/head_loss_kernels.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/loss_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

struct HeadLossShape {
  int64_t rows, cols, vocab;
  int64_t chunk;    // Rows.
  int64_t dw_sums;  // Bytes of dw's sums over chunks in the workspace; 0: dw itself holds them.
};

// Threads that compute other columns of the same row do so, too: the order makes no difference.
void RaiseTo(float& max, float value) {
  const std::atomic_ref<float> shared(max);
  float before = shared.load(std::memory_order_relaxed);
  while (value > before &&
         !shared.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

// Multiplies floats by `factor`, in place, as elements of this dtype: bf16 and fp16 take the first
// half of the memory.
void ScaleTo(DType dtype, float factor, int64_t n, float* row) {
  const View to(reinterpret_cast<std::byte*>(row), dtype, {n});
  FloatPiece buffer;
  ForEachPiece(dtype, 0, n, [&](int64_t first, int64_t count) {
    float* scaled = FloatsToWrite(to, first, buffer);
#pragma omp simd
    for (int64_t v = 0; v < count; ++v) scaled[v] = factor * row[first + v];
    WriteFloats(scaled, count, to, first);
  });
}

// Without dx: the loss alone. `workspace`: for the rows of a chunk the loss in float64, the largest
// logit and a factor; then the rows' logits; then dw's sums, if it holds them.
void HeadLossCpu(ThreadPool& pool, const HeadLossShape& s, const ConstView& x, const ConstView& w,
                 const ConstView& targets_view, const ConstView& weights_view, float scale,
                 const std::optional<ConstView>& loss_scale, const View& loss,
                 const std::optional<View>& dx, const std::optional<View>& dw,
                 const View& workspace) {
  const int32_t* const targets = targets_view.As<int32_t>();
  const float* const weights = weights_view.As<float>();
  const HeadLossKernels& kernels = ForThisCpu(kHeadLossAvx2, kHeadLossAvx512);
  const bool with_gradient = dx.has_value();
  // g is scaled before its products, which round their results. In fp32 x and dx are scaled
  // instead: they are smaller.
  const bool scale_g = x.dtype != DType::kFloat32;
  // For a chunk's rows: the loss, the largest logit, and the factor that a row of g still lacks.
  double* const nll = workspace.As<double>();
  float *const maxima = reinterpret_cast<float*>(nll + s.chunk), *const factors = maxima + s.chunk;
  float* const logits = factors + s.chunk;
  const View dw_sums(workspace.data + s.dw_sums, DType::kFloat32, {s.vocab, s.cols});
  const double gradient_scale = loss_scale ? *loss_scale->As<float>() : 1;
  double total = 0;
  for (int64_t first = 0; first < s.rows; first += s.chunk) {
    const int64_t rows = std::min(s.chunk, s.rows - first);
    const int64_t chunk = first * s.cols;  // The chunk's begin in x and dx.
    std::fill_n(maxima, rows, -std::numeric_limits<float>::infinity());
    Gemm(pool, rows, s.vocab, s.cols, Factor(x, chunk, s.cols), Transposed(w, 0, s.cols),
         {logits, s.vocab}, {.finish = [&](const GemmTile& tile) {
           for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
             RaiseTo(maxima[i], kernels.max(logits + i * s.vocab + tile.col, tile.cols));
           }
         }});
    pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* row = logits + i * s.vocab;
        const float weight = weights[first + i];
        if (weight == 0) {
          nll[i] = factors[i] = 0;
          if (with_gradient) std::fill_n(row, s.vocab, 0.0f);
          continue;
        }
        const float max = maxima[i];
        float& target = row[targets[first + i]];
        const float logit = target;
        const double sum = with_gradient ? kernels.replace_by_exp(row, s.vocab, max)
                                         : kernels.sum_of_exp(row, s.vocab, max);
        nll[i] = std::log(sum) + (static_cast<double>(max) - logit);
        // g = factor (e - [target] sum): the factor goes to what g is multiplied with.
        target -= static_cast<float>(sum);
        factors[i] = static_cast<float>(scale * weight / sum * gradient_scale);
        if (with_gradient && scale_g) ScaleTo(w.dtype, factors[i], s.vocab, row);
      }
    });
    for (int64_t i = 0; i < rows; ++i) total += weights[first + i] * nll[i];
    if (!with_gradient) continue;
    const int64_t row_elements = s.vocab * int64_t{sizeof(float)} / SizeOf(w.dtype);
    const View g(reinterpret_cast<std::byte*>(logits), w.dtype, {rows, row_elements});
    const GemmOperand g_rows = Factor(g, 0, row_elements), w_rows = Factor(w, 0, s.cols);
    const auto add_to_dw = [&](const ConstView& right) {
      const bool sums = s.dw_sums > 0;
      Gemm(pool, s.vocab, s.cols, rows, Transposed(g, 0, row_elements),
           Factor(right, chunk, s.cols), Result(sums ? dw_sums : *dw, 0, s.cols),
           {.beta = sums && first == 0 ? 0.0f : 1.0f});
    };
    if (scale_g) {
      if (dw) add_to_dw(x);
      Gemm(pool, rows, s.cols, s.vocab, g_rows, w_rows, Result(*dx, chunk, s.cols));
      continue;
    }
    float* const dx_chunk = dx->As<float>() + chunk;
    const auto scale_rows = [&](const GemmTile& tile, const float* from) {
      for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
        const float factor = factors[i];
        const int64_t at = i * s.cols + tile.col;
#pragma omp simd
        for (int64_t j = 0; j < tile.cols; ++j) dx_chunk[at + j] = factor * from[at + j];
      }
    };
    if (dw) {
      // dx's place serves for the rows of x, each times its factor, until dx itself comes there.
      pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
        scale_rows({begin, end - begin, 0, s.cols}, x.As<float>() + chunk);
      });
      add_to_dw(*dx);
    }
    Gemm(pool, rows, s.cols, s.vocab, g_rows, w_rows, Result(*dx, chunk, s.cols),
         {.finish = [&](const GemmTile& tile) { scale_rows(tile, dx_chunk); }});
  }
  if (dw && s.dw_sums > 0) {
    const int64_t n = s.vocab * s.cols;
    constexpr int64_t kGrain = 1024;
    pool.ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
      AddFloats(dw_sums.As<float>() + begin, end - begin, *dw, begin);
    });
  }
  *loss.As<float>() += static_cast<float>(scale * total);
}

// A chunk reads w for the logits and for dx, and reads and writes dw: with few rows that traffic
// decides. GPT-2's head (50257 x 768, 2048 rows, two cores of a Xeon of 2023) took about 2 % less
// with chunks of 1024 rows than of 512. Logits are fp32 whatever x is. Where x has two bytes, all
// other operands are half as large, so the chunk is half as many rows.
constexpr int64_t MaxChunkRows(DType x) { return x == DType::kFloat32 ? 1024 : 512; }
constexpr int64_t kMaxChunkBytes = int64_t{256} << 20;
// A GPU's products take so much less time that with 1024 rows the traffic of dw, once per chunk,
// would take about as long.
constexpr int64_t kMaxChunkRowsCuda = 8192;
constexpr int64_t kMaxChunkBytesCuda = int64_t{4} << 30;
constexpr int64_t kGrain = 16;

constexpr int64_t kAlign = 64;
int64_t Aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Elements from one row of logits to the next: on CUDA rows begin at multiples of 16 bytes.
int64_t LogitsStride(int64_t vocab) {
  constexpr int64_t kPack = 8;
  return (vocab + kPack - 1) / kPack * kPack;
}
int64_t LogitsBytesCuda(int64_t chunk, int64_t vocab, DType w) {
  return Aligned(chunk * LogitsStride(vocab) * SizeOf(w));
}
int64_t TermsBytesCuda(int64_t rows) { return Aligned(rows * int64_t{sizeof(double)}); }

// The workspace from its first multiple of kAlign on: logits, terms, and dw's sums if there are
// any.
HeadLossBuffers BuffersCuda(const HeadLossShape& s, DType w, const View& workspace) {
  const auto address = reinterpret_cast<uintptr_t>(workspace.data);
  std::byte* const logits = workspace.data + (kAlign - address % kAlign) % kAlign;
  std::byte* const terms = logits + LogitsBytesCuda(s.chunk, s.vocab, w);
  const int64_t terms_bytes = TermsBytesCuda(s.rows);
  HeadLossBuffers buffers{View(logits, w, {s.chunk, LogitsStride(s.vocab)}),
                          View(terms, DType::kUInt8, {terms_bytes}), std::nullopt};
  if (s.dw_sums > 0) {
    buffers.dw_sums = View(terms + terms_bytes, DType::kFloat32, {s.vocab, s.cols});
  }
  return buffers;
}

struct Gradients {
  std::optional<ConstView> scale;
  View dx;
  std::optional<View> dw;
};

// Costs of the products: of whole chunks, and of the remaining rows. The first product of a kind
// carries the operands' bytes. The other bytes are the logits, between the kernels of a chunk, and
// what each chunk reads or adds to again.
std::vector<KernelCost> Costs(const HeadLossShape& s, const ConstView& x, const ConstView& w,
                              const std::optional<Gradients>& gradients) {
  Cost logits{.bytes_read = static_cast<double>(x.bytes() + w.bytes())}, dx, dw;
  if (gradients) dx.bytes_written = static_cast<double>(gradients->dx.bytes());
  const bool with_dw = gradients && gradients->dw;
  if (with_dw) dw.bytes_read = dw.bytes_written = static_cast<double>(gradients->dw->bytes());
  std::vector<KernelCost> costs;
  bool first = true;
  const auto add = [&](int64_t rows, int64_t count) {
    if (rows == 0 || count == 0) return;
    const auto again = static_cast<double>(count - (std::exchange(first, false) ? 1 : 0));
    const double w_bytes = static_cast<double>(w.bytes());
    const double x_bytes = static_cast<double>(count * rows * s.cols * SizeOf(x.dtype));
    const double logits_bytes = static_cast<double>(count * rows * s.vocab * SizeOf(w.dtype));
    Product product{.name = "logits", .m = rows, .n = s.vocab, .k = s.cols, .b_transposed = true};
    product.count = count;
    // With an fp32 w beside other activations all are of fp32.
    product.dtype = product.result = w.dtype;
    costs.emplace_back(product, std::exchange(logits, {}), logits_bytes + again * w_bytes);
    product.b_transposed = false;
    if (gradients) {
      product.name = "dx", product.n = s.cols, product.k = s.vocab;
      product.result = gradients->dx.dtype;
      costs.emplace_back(product, std::exchange(dx, {}),
                         logits_bytes + static_cast<double>(count) * w_bytes);
    }
    if (with_dw) {
      product.name = "dw", product.m = s.vocab, product.n = s.cols, product.k = rows;
      product.a_transposed = product.adds = true;
      product.result = s.dw_sums > 0 ? DType::kFloat32 : gradients->dw->dtype;
      // Sums apart are written by the first chunk, and added to by the others.
      const double sums = static_cast<double>(s.vocab * s.cols * SizeOf(product.result));
      const double adds = 2 * again + (s.dw_sums > 0 && again < static_cast<double>(count) ? 1 : 0);
      costs.emplace_back(product, std::exchange(dw, {}), logits_bytes + x_bytes + adds * sums);
    }
  };
  if (s.chunk > 0) {
    add(s.chunk, s.rows / s.chunk);
    add(s.rows % s.chunk, 1);
  }
  return costs;
}

// The parts beside the products: rows of each chunk, dw's sums if there are any, and terms.
OnGpu LossOnGpu(const HeadLossShape& s, DType logits, bool with_gradient) {
  const int64_t chunks = s.chunk > 0 ? (s.rows + s.chunk - 1) / s.chunk : 0;
  const int64_t terms = 2 * s.rows * int64_t{sizeof(double)};
  const int64_t passes = with_gradient ? 3 : 1;  // The gradient reads once more, and writes.
  const int64_t sums = s.dw_sums > 0 ? s.vocab * s.cols * int64_t{sizeof(float)} : 0;
  return {.launches = chunks + (sums > 0 ? 1 : 0) + 1,
          .extra_bytes =
              static_cast<double>(passes * s.rows * s.vocab * SizeOf(logits) + terms + sums)};
}

void Enqueue(const char* name, Stream& stream, ConstView x, ConstView w, ConstView targets,
             ConstView weights, float scale, View loss, const std::optional<Gradients>& gradients,
             View workspace) {
  const Arguments arguments(name);
  arguments.CheckDType("x", x.dtype, kFloatDTypes);
  arguments.CheckRank("x", x, x.dtype, 2);
  arguments.CheckRank("w", w, w.dtype, 2);
  const int64_t rows = x.shape[0], cols = x.shape[1], vocab = w.shape[0];
  arguments.CheckWeight("w", w, x.dtype, {vocab, cols});
  arguments.Require(vocab > 0, "w has no rows");
  arguments.Check("targets", targets, DType::kInt32, {rows});
  arguments.Check("weights", weights, DType::kFloat32, {rows});
  arguments.Check("loss", loss, DType::kFloat32, {1});
  const DeviceType device = stream.device().kernel_type();
  const int64_t base_bytes = HeadLossWorkspaceBytes(rows, vocab, x.dtype, w.dtype, device);
  const bool with_dw = gradients && gradients->dw;
  if (with_dw) arguments.CheckGradient("dw", *gradients->dw, w.shape);
  const int64_t dw_bytes = with_dw ? HeadLossDwWorkspaceBytes(rows, cols, vocab, x.dtype, w.dtype,
                                                              gradients->dw->dtype, device)
                                   : 0;
  arguments.CheckWorkspace(workspace, base_bytes + dw_bytes);
  arguments.Require(reinterpret_cast<uintptr_t>(workspace.data) % alignof(double) == 0,
                    "workspace does not start at a multiple of 8");

  struct Named {
    const char* name;
    View view;
  };
  std::vector<Named> results = {{"loss", loss}, {"workspace", workspace}};
  if (gradients) {
    arguments.Check("dx", gradients->dx, x.dtype, x.shape);
    results.push_back({"dx", gradients->dx});
  }
  if (with_dw) results.push_back({"dw", *gradients->dw});
  Operation operation{.name = name, .reads = {x, w, targets, weights}, .writes = {}, .costs = {}};
  const std::optional<ConstView> loss_scale = gradients ? gradients->scale : std::nullopt;
  if (loss_scale) {
    arguments.Check("loss_scale", *loss_scale, DType::kFloat32, {1});
    operation.reads.push_back(*loss_scale);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& [result_name, view] = results[i];
    arguments.CheckDisjoint(result_name, view, "x", x);
    arguments.CheckDisjoint(result_name, view, "w", w);
    arguments.CheckDisjoint(result_name, view, "targets", targets);
    arguments.CheckDisjoint(result_name, view, "weights", weights);
    for (size_t j = 0; j < i; ++j) {
      arguments.CheckDisjoint(result_name, view, results[j].name, results[j].view);
    }
    operation.writes.push_back(view);
  }

  const HeadLossShape shape{rows, cols, vocab,
                            HeadLossChunkRows(rows, vocab, x.dtype, w.dtype, device),
                            dw_bytes > 0 ? base_bytes : 0};
  operation.costs = Costs(shape, x, w, gradients);
  const Cost cost{
      .flops = 4 * static_cast<double>(rows) * static_cast<double>(vocab),
      .bytes_read = static_cast<double>(targets.bytes() + weights.bytes() + loss.bytes()),
      .bytes_written = static_cast<double>(loss.bytes())};
  operation.costs.emplace_back(cost, LossOnGpu(shape, w.dtype, gradients.has_value()));
  const std::optional<View> dx = gradients ? std::optional(gradients->dx) : std::nullopt;
  const std::optional<View> dw = gradients ? gradients->dw : std::nullopt;
  if (device == DeviceType::kCpu) {
    operation.kernels.cpu = OnCpu(HeadLossCpu, shape, x, w, targets, weights, scale, loss_scale,
                                  loss, dx, dw, workspace);
  } else {
    operation.kernels.cuda = OnCuda(HeadLossCuda, x, w, targets, weights, scale, loss_scale, loss,
                                    dx, dw, BuffersCuda(shape, w.dtype, workspace));
  }
  stream.Enqueue(std::move(operation));
}

}  // namespace

int64_t HeadLossChunkRows(int64_t rows, int64_t vocab, DType x, DType w, DeviceType device) {
  const bool cpu = device == DeviceType::kCpu;
  const int64_t row_bytes = vocab * (cpu ? int64_t{sizeof(float)} : SizeOf(w));
  const int64_t fit = (cpu ? kMaxChunkBytes : kMaxChunkBytesCuda) / row_bytes / kGrain * kGrain;
  return std::min(rows, std::clamp(fit, kGrain, cpu ? MaxChunkRows(x) : kMaxChunkRowsCuda));
}

int64_t HeadLossWorkspaceBytes(int64_t rows, int64_t vocab, DType x, DType w, DeviceType device) {
  Arguments("head_loss").CheckHasKernels("x", x, kFloatDTypes, device);
  const int64_t chunk = HeadLossChunkRows(rows, vocab, x, w, device);
  if (device != DeviceType::kCpu) {
    return kAlign + LogitsBytesCuda(chunk, vocab, w) + TermsBytesCuda(rows);
  }
  // nll, the largest logit and a factor, and the logits.
  const int64_t row_bytes = int64_t{sizeof(double)} + (2 + vocab) * int64_t{sizeof(float)};
  return Aligned(chunk * row_bytes);
}

int64_t HeadLossDwWorkspaceBytes(int64_t rows, int64_t cols, int64_t vocab, DType x, DType w,
                                 DType dw, DeviceType device) {
  if (dw == DType::kFloat32 || rows <= HeadLossChunkRows(rows, vocab, x, w, device)) return 0;
  return Aligned(vocab * cols * int64_t{sizeof(float)});
}

void HeadLossForward(Stream& stream, ConstView x, ConstView w, ConstView targets, ConstView weights,
                     float scale, View loss, View workspace) {
  Enqueue("head_loss_forward", stream, x, w, targets, weights, scale, loss, std::nullopt,
          workspace);
}

void HeadLossForwardBackward(Stream& stream, ConstView x, ConstView w, ConstView targets,
                             ConstView weights, float scale,
                             const std::optional<ConstView>& loss_scale, View loss, View dx,
                             std::optional<View> dw, View workspace) {
  Enqueue("head_loss_forward_backward", stream, x, w, targets, weights, scale, loss,
          Gradients{loss_scale, dx, dw}, workspace);
}

}  // namespace fsdp
