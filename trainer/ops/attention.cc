#include "trainer/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/attention_backends.h"
#include "trainer/ops/attention_checks.h"
#include "trainer/ops/cpu/attention/attention_kernels.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/gemm/gemm_pairs.h"
#include "trainer/ops/cpu/head_rows.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/kinds.h"
#include "trainer/ops/cudnn/attention_cudnn.h"
#include "trainer/ops/tiled_attention.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

static_assert(kMaxHeadDim == kAttentionMaxHeadDim);

const AttentionKernels& Kernels() { return ForThisCpu(kAttentionAvx2, kAttentionAvx512); }

const AttentionKernelsBf16& KernelsBf16() {
  switch (ThisIsa().tiles) {
    case TileUse::kHardware:
      return kAttentionTilesAmx;
    case TileUse::kEmulated:
      return ForThisCpu(kAttentionTilesAvx2, kAttentionTilesAvx512);
    case TileUse::kNone:
      break;
  }
  return MultiplyPairs() ? kAttentionPairs
                         : ForThisCpu(kAttentionFloatsAvx2, kAttentionFloatsAvx512);
}

// The draws of sample 0's head 0, without the key.
ProbabilityDraws Draws(const AttentionDropout& dropout) {
  if (dropout.rate == 0) return {};
  return {.threshold = static_cast<uint32_t>(std::ldexp(dropout.rate, 32)),
          .scale = static_cast<float>(1 / (1 - dropout.rate)),
          .site = dropout.site};
}

// Rows of a head of q, and of its group's k and v.
template <typename T>
struct QkvRows {
  HeadRows<const T> q, k, v;
};

// A head's row of the bias, and of a sample's sums for its gradient, in the kernels' order. Rows
// without memory are left out.
struct BiasRows {
  const AttentionDims& dims;
  float* bias = nullptr;  // [heads, distances]
  float* sums = nullptr;  // [batch, heads, distances]

  BiasRows(const AttentionDims& d, const View& workspace, bool gradient) : dims(d) {
    if (!dims.bias) return;
    bias = workspace.As<float>();
    if (gradient) sums = bias + dims.heads * dims.distances();
  }
  float* BiasOf(int64_t head) const {
    return bias == nullptr ? nullptr : bias + head * dims.distances();
  }
  float* SumsOf(int64_t sample, int64_t head) const {
    return sums == nullptr ? nullptr : sums + (sample * dims.heads + head) * dims.distances();
  }
  // The last distance comes first: it is that of query 0 and the last key.
  void Spread(ThreadPool& pool, const AttentionBias& from) const {
    if (bias == nullptr) return;
    const int32_t* const buckets = from.buckets.As<int32_t>();
    const int64_t columns = from.table.shape[1], n = dims.distances();
    pool.ParallelFor(dims.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h) {
        float* const to = BiasOf(h);
        for (int64_t i = 0; i < n; ++i) {
          float one;
          to[n - 1 - i] = *ReadFloats(from.table, h * columns + buckets[i], 1, &one);
        }
      }
    });
  }
  // Adds up samples in order, then the distances of each bucket, the last one first.
  void Gather(ThreadPool& pool, const ConstView& bucket_view, const View& to) const {
    if (sums == nullptr) return;
    const int32_t* const buckets = bucket_view.As<int32_t>();
    const int64_t columns = to.shape[1], n = dims.distances();
    pool.ParallelFor(dims.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h) {
        float* const all = BiasOf(h);  // Nobody needs it any more.
        std::fill_n(all, n, 0.0f);
        for (int64_t b = 0; b < dims.batch; ++b) {
          const float* const of_sample = SumsOf(b, h);
          for (int64_t i = 0; i < n; ++i) all[i] += of_sample[i];
        }
        for (int64_t u = 0; u < columns; ++u) {
          float sum = 0;
          for (int64_t i = 0; i < n; ++i) {
            if (buckets[n - 1 - i] == u) sum += all[i];
          }
          float one;
          *FloatsToWrite(to, h * columns + u, &one) = sum;
          WriteFloats(&one, 1, to, h * columns + u);
        }
      }
    });
  }
};

template <typename T>
BasicAttentionHead<T> HeadOf(const AttentionDims& dims, const AttentionInputs& in, int64_t sample,
                             int64_t head, const QkvRows<T>& rows, int64_t out_stride,
                             const BiasRows& bias) {
  const bool drops = in.dropout.rate > 0;
  ProbabilityDraws drop = Draws(in.dropout);
  if (drops) {
    const int32_t* const keys = in.dropout.keys.As<int32_t>();
    drop.head = static_cast<uint32_t>(head);
    for (int i = 0; i < 2; ++i) drop.key[i] = static_cast<uint32_t>(keys[2 * sample + i]);
  }
  return {.q = rows.q.data,
          .k = rows.k.data,
          .v = rows.v.data,
          .positions = in.HasPositions() ? in.positions.As<int32_t>() + sample * dims.seq : nullptr,
          .q_stride = rows.q.stride,
          .k_stride = rows.k.stride,
          .v_stride = rows.v.stride,
          .out_stride = out_stride,
          .seq = dims.seq,
          .keys = dims.keys,
          .seen = in.HasLengths()
                      ? std::clamp<int64_t>(in.lengths.As<int32_t>()[sample], 0, dims.keys)
                      : dims.keys,
          .head_dim = dims.head_dim,
          .causal = in.mask == AttentionMask::kCausal,
          .scale = in.Scale(),
          .drops = drops,
          .drop = drop,
          .bias = bias.BiasOf(head),
          .bias_sums = bias.SumsOf(sample, head)};
}

template <typename AnyView>
BasicHeads<AnyView> AllHeads(const AttentionDims& dims, const AnyView& out) {
  return {out, 0, dims.heads};
}

int64_t LseOffset(const AttentionDims& dims, int64_t sample, int64_t head) {
  return (sample * dims.heads + head) * dims.seq;
}

// The rows of a head of bf16, where they lie.
template <typename AnyView>
auto RowsBf16(const BasicHeads<AnyView>& heads, int64_t sample, int64_t head) {
  auto* const data = heads.tensor.template As<uint16_t>() + HeadBegin(heads, sample, head);
  return HeadRows<std::remove_pointer_t<decltype(data + 0)>>{data, heads.stride()};
}

QkvRows<uint16_t> QkvBf16(const AttentionInputs& in, int64_t sample, int64_t head,
                          int64_t kv_head) {
  return {RowsBf16(in.q, sample, head), RowsBf16(in.k, sample, kv_head),
          RowsBf16(in.v, sample, kv_head)};
}

void ForwardBf16(ThreadPool& pool, const AttentionDims& dims, const AttentionInputs& in,
                 const BiasRows& bias, const Heads& out, float* lse) {
  const AttentionKernelsBf16& kernels = KernelsBf16();
  pool.ParallelFor(dims.batch * dims.heads, 1, [&](int64_t begin, int64_t end) {
    RowBuffers memory(DType::kBFloat16, 1,
                      kernels.forward_memory(dims.seq, dims.keys, dims.head_dim));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / dims.heads, h = i % dims.heads, kv_head = h / dims.group();
      const HeadRows<uint16_t> to = RowsBf16(out, sample, h);
      kernels.forward(HeadOf(dims, in, sample, h, QkvBf16(in, sample, h, kv_head), to.stride, bias),
                      i == begin || h % dims.group() == 0, memory[0], to.data,
                      lse + LseOffset(dims, sample, h));
    }
  });
}

void BackwardBf16(ThreadPool& pool, const AttentionDims& dims, const AttentionInputs& in,
                  const BiasRows& bias, const ConstHeads& out, const float* lse,
                  const ConstHeads& dout, const AttentionGradients& gradients) {
  const AttentionKernelsBf16& kernels = KernelsBf16();
  const int64_t groups = dims.heads > 0 ? dims.kv_heads : 0;
  pool.ParallelFor(dims.batch * groups, 1, [&](int64_t begin, int64_t end) {
    RowBuffers memory(DType::kBFloat16, 1,
                      kernels.backward_memory(dims.seq, dims.keys, dims.head_dim));
    for (int64_t i = begin * dims.group(); i < end * dims.group(); ++i) {
      const int64_t sample = i / dims.heads, h = i % dims.heads, kv_head = h / dims.group();
      const HeadRows<const uint16_t> o = RowsBf16(out, sample, h), d = RowsBf16(dout, sample, h);
      kernels.backward(HeadOf(dims, in, sample, h, QkvBf16(in, sample, h, kv_head), o.stride, bias),
                       h % dims.group() == 0, (h + 1) % dims.group() == 0, memory[0], o.data,
                       lse + LseOffset(dims, sample, h), d.data, RowsBf16(gradients.q, sample, h),
                       RowsBf16(gradients.k, sample, kv_head),
                       RowsBf16(gradients.v, sample, kv_head));
    }
  });
}

void BackwardFloats(ThreadPool& pool, const AttentionDims& dims, const AttentionInputs& in,
                    const BiasRows& bias, const ConstHeads& out, const float* lse,
                    const ConstHeads& dout, const AttentionGradients& gradients) {
  const int64_t groups = dims.heads > 0 ? dims.kv_heads : 0;
  pool.ParallelFor(dims.batch * groups, 1, [&](int64_t begin, int64_t end) {
    RowBuffers buffers(out.tensor.dtype, 8, std::max(dims.seq, dims.keys) * dims.head_dim);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / groups, kv_head = i % groups;
      const HeadRows<const float> k = ReadHead(in.k, sample, kv_head, dims.keys, buffers[0]);
      const HeadRows<const float> v = ReadHead(in.v, sample, kv_head, dims.keys, buffers[1]);
      const HeadRows<float> dk = HeadToWrite(gradients.k, sample, kv_head, buffers[2]);
      const HeadRows<float> dv = HeadToWrite(gradients.v, sample, kv_head, buffers[3]);
      for (int64_t g = 0; g < dims.group(); ++g) {
        const int64_t h = kv_head * dims.group() + g;
        const QkvRows<float> rows{ReadHead(in.q, sample, h, dims.seq, buffers[4]), k, v};
        const HeadRows<const float> o = ReadHead(out, sample, h, dims.seq, buffers[5]);
        const HeadRows<const float> d = ReadHead(dout, sample, h, dims.seq, buffers[6]);
        const HeadRows<float> dq = HeadToWrite(gradients.q, sample, h, buffers[7]);
        Kernels().backward(HeadOf(dims, in, sample, h, rows, o.stride, bias), o.data,
                           lse + LseOffset(dims, sample, h), d.data, g == 0, dq, dk, dv);
        WriteHead(dq, dims.seq, gradients.q, sample, h);
      }
      WriteHead(dk, dims.keys, gradients.k, sample, kv_head);
      WriteHead(dv, dims.keys, gradients.v, sample, kv_head);
    }
  });
}

void AttentionForwardCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionInputs& in,
                         const View& out_view, const View& lse, const View& workspace) {
  const BiasRows bias(dims, workspace, false);
  bias.Spread(pool, in.bias);
  const Heads out = AllHeads(dims, out_view);
  if (out_view.dtype == DType::kBFloat16) {
    return ForwardBf16(pool, dims, in, bias, out, lse.As<float>());
  }
  pool.ParallelFor(dims.batch * dims.heads, 1, [&](int64_t begin, int64_t end) {
    RowBuffers buffers(out_view.dtype, 4, std::max(dims.seq, dims.keys) * dims.head_dim);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / dims.heads, h = i % dims.heads, kv_head = h / dims.group();
      const QkvRows<float> rows{ReadHead(in.q, sample, h, dims.seq, buffers[0]),
                                ReadHead(in.k, sample, kv_head, dims.keys, buffers[1]),
                                ReadHead(in.v, sample, kv_head, dims.keys, buffers[2])};
      const HeadRows<float> to = HeadToWrite(out, sample, h, buffers[3]);
      Kernels().forward(HeadOf(dims, in, sample, h, rows, to.stride, bias), to.data,
                        lse.As<float>() + LseOffset(dims, sample, h));
      WriteHead(to, dims.seq, out, sample, h);
    }
  });
}

void AttentionBackwardCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionInputs& in,
                          const ConstView& out, const ConstView& lse, const ConstView& dout,
                          const AttentionGradients& gradients, const View& workspace) {
  const BiasRows bias(dims, workspace, gradients.HasBias());
  bias.Spread(pool, in.bias);
  const auto backward = out.dtype == DType::kBFloat16 ? BackwardBf16 : BackwardFloats;
  backward(pool, dims, in, bias, AllHeads(dims, out), lse.As<float>(), AllHeads(dims, dout),
           gradients);
  bias.Gather(pool, in.bias.buckets, gradients.bias);
}

// The products of a kernel in tiles, of all pairs, masked ones included.
KernelCost Tiled(const AttentionDims& dims, const Cost& cost, const OnGpu& gpu, double model_flops,
                 int64_t products) {
  KernelCost kernel(KernelKind::kAttention, cost, gpu, model_flops);
  kernel.product = {.name = kTiledAttention,
                    .m = dims.seq,
                    .n = dims.keys,
                    .k = dims.head_dim,
                    .count = products * dims.batch * dims.heads};
  return kernel;
}

constexpr const char* kForward = "attention_forward";
constexpr const char* kBackward = "attention_backward";

// Pairs of a query and a key that it sees, over all heads; documents and lengths do not count.
double Pairs(const AttentionDims& d, AttentionMask mask) {
  if (mask == AttentionMask::kFull) return 1.0 * d.batch * d.heads * d.seq * d.keys;
  return 0.5 * d.batch * d.heads * d.seq * (d.seq + 1);
}

// Multiply-adds of one product of queries with keys, all heads.
double OneProduct(const AttentionDims& d, AttentionMask mask) {
  return Pairs(d, mask) * d.head_dim;
}

// FLOPs of dropout's draws.
double DropoutFlops(const AttentionDims& d, const AttentionInputs& in) {
  return in.dropout.rate > 0 ? kDrawFlops * Pairs(d, in.mask) : 0;
}

// FLOPs of adding the bias; with `gradient` also of the bias's gradient.
double BiasFlops(const AttentionDims& d, const AttentionInputs& in, bool gradient) {
  return d.bias ? (gradient ? 2 : 1) * Pairs(d, in.mask) : 0;
}

// Our kernels: one for dout . out, one for dk and dv, and one for dq. The last reads all but out
// once more, and each of them reads dout. The gradient of a bias takes two more: the first reads
// what the kernel for dq reads, the second the sums of the first. `read`: bytes of q, k, v, dout
// and lse.
OnGpu BackwardOnGpu(const AttentionDims& d, DType dtype, AttentionBackend backend, double read,
                    double dout, const View* dbias) {
  const int64_t rows = d.batch * d.seq * d.heads;
  const int64_t key_rows = d.heads > 0 ? d.batch * d.keys * d.kv_heads : 0;
  const int64_t workspace = AttentionBackwardWorkspaceBytes(d, dtype, DeviceType::kCuda, backend);
  if (BackwardTakenByCudnn(backend, d, dtype)) return {.extra_bytes = 2.0 * workspace};
  OnGpu gpu{.launches = (rows > 0 ? 2 : 0) + (key_rows > 0 ? 1 : 0),
            .extra_bytes = read + dout + 3.0 * workspace};
  if (dbias != nullptr) {
    const int64_t sums = DistanceBytes(d, d.batch);
    gpu.launches += (sums > 0 ? 1 : 0) + (dbias->NumElements() > 0 ? 1 : 0);
    gpu.extra_bytes += read;
  }
  return gpu;
}

}  // namespace

int64_t AttentionForwardWorkspaceBytes(const AttentionDims& dims, DType dtype, DeviceType device,
                                       AttentionBackend backend) {
  Arguments(kForward).CheckHasKernels("q", dtype, kFloatDTypes, device);
  if (device == DeviceType::kCpu) return DistanceBytes(dims, 1);
  if (!TakenByCudnn(backend, dims, dtype)) return 0;
  return CudnnForwardWorkspace(dims).bytes();
}

int64_t AttentionBackwardWorkspaceBytes(const AttentionDims& dims, DType dtype, DeviceType device,
                                        AttentionBackend backend) {
  Arguments(kBackward).CheckHasKernels("q", dtype, kFloatDTypes, device);
  if (device == DeviceType::kCpu) return DistanceBytes(dims, 1 + dims.batch);
  if (BackwardTakenByCudnn(backend, dims, dtype)) {
    return CudnnBackwardWorkspace(dims, backend == AttentionBackend::kCudnnDeterministic).bytes();
  }
  return dims.batch * dims.heads * dims.seq * static_cast<int64_t>(sizeof(float)) +
         DistanceBytes(dims, dims.batch);
}

void AttentionForward(Stream& stream, const AttentionInputs& in, View out, View lse,
                      View workspace) {
  const Arguments args(kForward);
  const AttentionDims dims = CheckAttention(args, in);
  args.Require(in.backend != AttentionBackend::kMath, "math, which has ops of its own");
  const DType dtype = in.q.tensor.dtype;
  args.Check("out", out, dtype, {dims.batch, dims.seq, dims.heads, dims.head_dim});
  args.Check("lse", lse, DType::kFloat32, {dims.batch, dims.heads, dims.seq});
  args.CheckWorkspace(workspace, AttentionForwardWorkspaceBytes(
                                     dims, dtype, stream.device().kernel_type(), in.backend));
  args.CheckDisjoint("lse", lse, "out", out);
  CheckAttentionResults(args, in, {{"out", out}, {"lse", lse}});
  const Cost cost{.flops = 2 * 2 * OneProduct(dims, in.mask) + DropoutFlops(dims, in) +
                           BiasFlops(dims, in, false),
                  .bytes_read = BytesOf(dims, in) + OtherBytesOf(in),
                  .bytes_written = static_cast<double>(out.bytes() + lse.bytes())};
  std::vector<Range> reads = ReadsOf(in);
  CpuKernel cpu = OnCpu(AttentionForwardCpu, dims, in, out, lse, workspace);
  CudaKernel cuda = TakenByCudnn(in.backend, dims, dtype)
                        ? OnCuda(AttentionForwardCudnn, dims, in, out, lse, workspace)
                        : OnCuda(AttentionForwardCuda, dims, in, out, lse);
  stream.Enqueue({kForward,
                  std::move(reads),
                  {out, lse, workspace},
                  {Tiled(dims, cost, {.launches = out.NumElements() > 0},
                         AttentionModelFlops(dims, in.mask), /*products=*/2)},
                  {.cpu = std::move(cpu), .cuda = std::move(cuda)}});
}

void AttentionBackward(Stream& stream, const AttentionInputs& in, ConstView out, ConstView lse,
                       ConstView dout, const AttentionGradients& gradients, View workspace) {
  const Arguments args(kBackward);
  const AttentionDims dims = CheckAttention(args, in);
  args.Require(in.backend != AttentionBackend::kMath, "math, which has ops of its own");
  const DType dtype = in.q.tensor.dtype;
  args.Check("out", out, dtype, {dims.batch, dims.seq, dims.heads, dims.head_dim});
  args.Check("lse", lse, DType::kFloat32, {dims.batch, dims.heads, dims.seq});
  args.Check("dout", dout, dtype, out.shape);
  args.CheckWorkspace(workspace, AttentionBackwardWorkspaceBytes(
                                     dims, dtype, stream.device().kernel_type(), in.backend));
  CheckAttentionGradients(args, dims, in, gradients, {{"out", out}, {"lse", lse}, {"dout", dout}});
  const bool has_dbias = gradients.HasBias();
  const double dout_bytes = static_cast<double>(dout.bytes());
  const OnGpu gpu = BackwardOnGpu(dims, dtype, in.backend,
                                  BytesOf(dims, in) + dout_bytes + static_cast<double>(lse.bytes()),
                                  dout_bytes, has_dbias ? &gradients.bias : nullptr);
  const Cost cost{.flops = 5 * 2 * OneProduct(dims, in.mask) + DropoutFlops(dims, in) +
                           BiasFlops(dims, in, has_dbias),
                  .bytes_read = BytesOf(dims, in) + OtherBytesOf(in) +
                                static_cast<double>(out.bytes() + dout.bytes() + lse.bytes()),
                  .bytes_written = BytesOf(dims, gradients)};
  std::vector<Range> reads = ReadsOf(in);
  reads.insert(reads.end(), {out, lse, dout});
  std::vector<Range> writes = WritesOf(gradients);
  writes.push_back(workspace);
  CpuKernel cpu = OnCpu(AttentionBackwardCpu, dims, in, out, lse, dout, gradients, workspace);
  CudaKernel cuda = OnCuda(BackwardTakenByCudnn(in.backend, dims, dtype) ? AttentionBackwardCudnn
                                                                         : AttentionBackwardCuda,
                           dims, in, out, lse, dout, gradients, workspace);
  stream.Enqueue({kBackward,
                  std::move(reads),
                  std::move(writes),
                  {Tiled(dims, cost, gpu, 2 * AttentionModelFlops(dims, in.mask), /*products=*/4)},
                  {.cpu = std::move(cpu), .cuda = std::move(cuda)}});
}

}  // namespace fsdp
