#include "trainer/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/attention_checks.h"
#include "trainer/ops/cpu/attention_cpu.h"
#include "trainer/ops/cuda/attention_backward_cuda.h"
#include "trainer/ops/cuda/attention_cuda.h"
#include "trainer/ops/cudnn/attention_cudnn.h"
#include "trainer/ops/tiled_attention.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

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
