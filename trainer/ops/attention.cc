#include "trainer/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/attention_cpu.h"
#include "trainer/ops/cuda/attention_backward_cuda.h"
#include "trainer/ops/cuda/attention_cuda.h"
#include "trainer/ops/cudnn/attention_cudnn.h"
#include "trainer/ops/cudnn/attention_workspace.h"

namespace fsdp {
namespace {

AttentionDims CheckInputs(const Arguments& args, const AttentionInputs& in) {
  const DType dtype = in.q.tensor.dtype;
  args.CheckDType("q", dtype, kFloatDTypes);
  CheckHeads(args, "q", in.q, dtype);
  CheckHeads(args, "k", in.k, dtype);
  CheckHeads(args, "v", in.v, dtype);
  const Shape& s = in.q.tensor.shape;
  const bool causal = in.mask == AttentionMask::kCausal;
  // Documents are of queries and keys alike.
  const int64_t keys = causal || in.HasPositions() ? s[1] : in.k.tensor.shape[1];
  for (const auto& [name, heads] : {std::pair("k", &in.k), std::pair("v", &in.v)}) {
    const Shape& other = heads->tensor.shape;
    args.Check(name, heads->tensor, dtype, {s[0], keys, other[2], s[3]});
  }
  args.Require(s[3] >= 1 && s[3] <= kMaxHeadDim, "head_dim, want in [1, 256]");
  args.Require(in.k.count == in.v.count, "k and v, want the same number of heads");
  args.Require(in.k.count > 0 ? in.q.count % in.k.count == 0 : in.q.count == 0,
               "q and k, want heads of k that divide those of q");
  if (causal || in.HasPositions()) {
    args.Check("positions", in.positions, DType::kInt32, {s[0], s[1]});
  }
  if (in.HasLengths()) {
    args.Check("lengths", in.lengths, DType::kInt32, {s[0]});
    args.Require(in.backend == AttentionBackend::kOwn, "lengths, which only our own kernels have");
  }
  if (!causal) {
    args.Require(in.backend == AttentionBackend::kOwn,
                 "a full mask, which only our own kernels have");
  }
  args.Require(in.dropout.rate >= 0 && in.dropout.rate < 1, "dropout.rate is not in [0, 1)");
  if (in.dropout.rate > 0) {
    args.Check("dropout.keys", in.dropout.keys, DType::kInt32, {s[0], 2});
    args.Require(in.backend == AttentionBackend::kOwn, "dropout, which only our own kernels have");
  }
  if (in.scale) {
    args.Require(*in.scale > 0 && std::isfinite(*in.scale), "scale, want a positive number");
    args.Require(in.backend == AttentionBackend::kOwn, "scale, which only our own kernels have");
  }
  const AttentionDims dims{.batch = s[0],
                           .seq = s[1],
                           .heads = in.q.count,
                           .kv_heads = std::max<int64_t>(1, in.k.count),
                           .head_dim = s[3],
                           .keys = keys,
                           .bias = in.HasBias()};
  if (dims.bias) {
    args.CheckRank("bias.table", in.bias.table, dtype, 2);
    args.Check("bias.table", in.bias.table, dtype, {dims.heads, in.bias.table.shape[1]});
    args.Check("bias.buckets", in.bias.buckets, DType::kInt32, {dims.distances()});
    args.Require(in.backend == AttentionBackend::kOwn, "a bias, which only our own kernels have");
  }
  return dims;
}

constexpr const char* kForward = "attention_forward";
constexpr const char* kBackward = "attention_backward";

// What is read but q, k and v.
void AddReads(const AttentionInputs& in, std::vector<Range>& reads) {
  if (in.HasPositions()) reads.push_back(in.positions);
  if (in.dropout.rate > 0) reads.push_back(in.dropout.keys);
  if (in.HasLengths()) reads.push_back(in.lengths);
  if (in.HasBias()) reads.insert(reads.end(), {in.bias.table, in.bias.buckets});
}

// Tensors, each once, however many of q, k and v lie in it.
template <typename AnyHeads>
std::vector<Range> Tensors(const std::vector<AnyHeads>& all) {
  std::vector<Range> ranges;
  std::vector<const std::byte*> seen;
  for (const AnyHeads& heads : all) {
    if (std::find(seen.begin(), seen.end(), heads.tensor.data) != seen.end()) continue;
    seen.push_back(heads.tensor.data);
    ranges.push_back(heads.tensor);
  }
  return ranges;
}

// Of what is read but q, k and v.
double OtherBytes(const AttentionInputs& in) {
  const int64_t positions = in.HasPositions() ? in.positions.bytes() : 0;
  const int64_t keys = in.dropout.rate > 0 ? in.dropout.keys.bytes() : 0;
  const int64_t lengths = in.HasLengths() ? in.lengths.bytes() : 0;
  const int64_t bias = in.HasBias() ? in.bias.table.bytes() + in.bias.buckets.bytes() : 0;
  return static_cast<double>(positions + keys + lengths + bias);
}

// Of q, k and v, or of their gradients.
template <typename AnyHeads>
double Bytes(const AttentionDims& d, const AnyHeads& q, const AnyHeads& k, const AnyHeads& v) {
  double bytes = 0;
  for (const auto& [heads, rows] :
       {std::pair(&q, d.seq), std::pair(&k, d.keys), std::pair(&v, d.keys)}) {
    bytes += static_cast<double>(d.batch * rows * heads->count * d.head_dim *
                                 SizeOf(heads->tensor.dtype));
  }
  return bytes;
}

// Of queries with keys that they see, all heads; documents and lengths do not count.
double Pairs(const AttentionDims& d, AttentionMask mask) {
  if (mask == AttentionMask::kFull) return 1.0 * d.batch * d.heads * d.seq * d.keys;
  return 0.5 * d.batch * d.heads * d.seq * (d.seq + 1);
}

// Multiply-adds of one product of queries with keys, all heads.
double OneProduct(const AttentionDims& d, AttentionMask mask) {
  return Pairs(d, mask) * d.head_dim;
}

// QK^T and PV as MFU counts them: 2 products x 2 FLOPs; backward twice as many. Under a causal mask
// of half a square (PaLM, arXiv:2204.02311, appendix B).
double ModelFlops(const AttentionDims& d, AttentionMask mask) {
  const double full = 4.0 * d.batch * d.heads * d.seq * d.keys * d.head_dim;
  return mask == AttentionMask::kFull ? full : full / 2;
}

// Of the draws of dropout.
double DropoutFlops(const AttentionDims& d, const AttentionInputs& in) {
  return in.dropout.rate > 0 ? 15 * Pairs(d, in.mask) : 0;
}

// Of adding the bias, and its gradient.
double BiasFlops(const AttentionDims& d, const AttentionInputs& in, bool gradient) {
  return d.bias ? (gradient ? 2 : 1) * Pairs(d, in.mask) : 0;
}

// Bytes of the sums of a bias by head and distance, of `samples`.
int64_t DistanceBytes(const AttentionDims& d, int64_t samples) {
  return d.bias ? samples * d.heads * d.distances() * static_cast<int64_t>(sizeof(float)) : 0;
}

// Ours are a kernel for dout . out, one for dk and dv, and one for dq: the last reads all but out
// once more, and each of them reads dout. The gradient of a bias is two more: the first reads what
// that for dq reads, the second its sums. `read`: q, k, v, dout and lse, bytes.
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
  const AttentionDims dims = CheckInputs(args, in);
  const DType dtype = in.q.tensor.dtype;
  args.Check("out", out, dtype, {dims.batch, dims.seq, dims.heads, dims.head_dim});
  args.Check("lse", lse, DType::kFloat32, {dims.batch, dims.heads, dims.seq});
  args.CheckWorkspace(workspace, AttentionForwardWorkspaceBytes(
                                     dims, dtype, stream.device().kernel_type(), in.backend));
  args.CheckDisjoint("lse", lse, "out", out);
  for (const auto& [name, heads] :
       {std::pair("q", &in.q), std::pair("k", &in.k), std::pair("v", &in.v)}) {
    args.CheckDisjoint("out", out, name, heads->tensor);
    args.CheckDisjoint("lse", lse, name, heads->tensor);
  }
  if (in.dropout.rate > 0) {
    args.CheckDisjoint("out", out, "dropout.keys", in.dropout.keys);
    args.CheckDisjoint("lse", lse, "dropout.keys", in.dropout.keys);
  }
  if (in.HasBias()) {
    args.CheckDisjoint("out", out, "bias.table", in.bias.table);
    args.CheckDisjoint("lse", lse, "bias.table", in.bias.table);
  }
  if (in.HasLengths()) {
    args.CheckDisjoint("out", out, "lengths", in.lengths);
    args.CheckDisjoint("lse", lse, "lengths", in.lengths);
  }
  const Cost cost{.flops = 2 * 2 * OneProduct(dims, in.mask) + DropoutFlops(dims, in) +
                           BiasFlops(dims, in, false),
                  .bytes_read = Bytes(dims, in.q, in.k, in.v) + OtherBytes(in),
                  .bytes_written = static_cast<double>(out.bytes() + lse.bytes())};
  std::vector<Range> reads = Tensors<ConstHeads>({in.q, in.k, in.v});
  AddReads(in, reads);
  CpuKernel cpu = OnCpu(AttentionForwardCpu, dims, in, out, lse, workspace);
  CudaKernel cuda = TakenByCudnn(in.backend, dims, dtype)
                        ? OnCuda(AttentionForwardCudnn, dims, in, out, lse, workspace)
                        : OnCuda(AttentionForwardCuda, dims, in, out, lse);
  stream.Enqueue({kForward,
                  std::move(reads),
                  {out, lse, workspace},
                  {{KernelKind::kAttention,
                    cost,
                    {.launches = out.NumElements() > 0},
                    ModelFlops(dims, in.mask)}},
                  {.cpu = std::move(cpu), .cuda = std::move(cuda)}});
}

void AttentionBackward(Stream& stream, const AttentionInputs& in, ConstView out, ConstView lse,
                       ConstView dout, const AttentionGradients& gradients, View workspace) {
  const Arguments args(kBackward);
  const AttentionDims dims = CheckInputs(args, in);
  const DType dtype = in.q.tensor.dtype;
  args.Check("out", out, dtype, {dims.batch, dims.seq, dims.heads, dims.head_dim});
  args.Check("lse", lse, DType::kFloat32, {dims.batch, dims.heads, dims.seq});
  args.Check("dout", dout, dtype, out.shape);
  args.CheckWorkspace(workspace, AttentionBackwardWorkspaceBytes(
                                     dims, dtype, stream.device().kernel_type(), in.backend));
  struct Gradient {
    const char* name;
    const Heads& heads;
    int64_t count, rows;
  };
  const Gradient all[] = {{"dq", gradients.q, in.q.count, dims.seq},
                          {"dk", gradients.k, in.k.count, dims.keys},
                          {"dv", gradients.v, in.v.count, dims.keys}};
  for (const Gradient& g : all) {
    CheckHeads(args, g.name, g.heads, dtype);
    const Shape& s = g.heads.tensor.shape;
    args.Check(g.name, g.heads.tensor, dtype, {dims.batch, g.rows, s[2], dims.head_dim});
    if (g.heads.count != g.count) {
      args.Fail(std::string(g.name) + " has " + std::to_string(g.heads.count) + " heads, want " +
                std::to_string(g.count));
    }
    for (const Gradient& other : all) {
      if (&other == &g) break;
      CheckHeadsApart(args, g.name, g.heads, other.name, other.heads);
    }
    for (const auto& [name, heads] :
         {std::pair("q", &in.q), std::pair("k", &in.k), std::pair("v", &in.v)}) {
      args.CheckDisjoint(g.name, g.heads.tensor, name, heads->tensor);
    }
    args.CheckDisjoint(g.name, g.heads.tensor, "out", out);
    args.CheckDisjoint(g.name, g.heads.tensor, "lse", lse);
    args.CheckDisjoint(g.name, g.heads.tensor, "dout", dout);
    if (in.dropout.rate > 0) {
      args.CheckDisjoint(g.name, g.heads.tensor, "dropout.keys", in.dropout.keys);
    }
    if (in.HasBias()) args.CheckDisjoint(g.name, g.heads.tensor, "bias.table", in.bias.table);
    if (in.HasLengths()) args.CheckDisjoint(g.name, g.heads.tensor, "lengths", in.lengths);
  }
  const bool has_dbias = gradients.HasBias();
  if (has_dbias) {
    args.Require(dims.bias, "dbias, of no bias");
    args.Check("dbias", gradients.bias, dtype, in.bias.table.shape);
    args.CheckDisjoint("dbias", gradients.bias, "bias.table", in.bias.table);
    for (const Gradient& g : all) {
      args.CheckDisjoint("dbias", gradients.bias, g.name, g.heads.tensor);
    }
    for (const auto& [name, heads] :
         {std::pair("q", &in.q), std::pair("k", &in.k), std::pair("v", &in.v)}) {
      args.CheckDisjoint("dbias", gradients.bias, name, heads->tensor);
    }
    for (const auto& [name, view] :
         {std::pair("out", out), std::pair("lse", lse), std::pair("dout", dout)}) {
      args.CheckDisjoint("dbias", gradients.bias, name, view);
    }
  }
  const double dout_bytes = static_cast<double>(dout.bytes());
  const OnGpu gpu =
      BackwardOnGpu(dims, dtype, in.backend,
                    Bytes(dims, in.q, in.k, in.v) + dout_bytes + static_cast<double>(lse.bytes()),
                    dout_bytes, has_dbias ? &gradients.bias : nullptr);
  const Cost cost{.flops = 5 * 2 * OneProduct(dims, in.mask) + DropoutFlops(dims, in) +
                           BiasFlops(dims, in, has_dbias),
                  .bytes_read = Bytes(dims, in.q, in.k, in.v) + OtherBytes(in) +
                                static_cast<double>(out.bytes() + dout.bytes() + lse.bytes()),
                  .bytes_written = Bytes(dims, gradients.q, gradients.k, gradients.v) +
                                   (has_dbias ? static_cast<double>(gradients.bias.bytes()) : 0)};
  std::vector<Range> reads = Tensors<ConstHeads>({in.q, in.k, in.v});
  AddReads(in, reads);
  reads.insert(reads.end(), {out, lse, dout});
  std::vector<Range> writes = Tensors<Heads>({gradients.q, gradients.k, gradients.v});
  if (has_dbias) writes.push_back(gradients.bias);
  writes.push_back(workspace);
  CpuKernel cpu = OnCpu(AttentionBackwardCpu, dims, in, out, lse, dout, gradients, workspace);
  CudaKernel cuda = OnCuda(BackwardTakenByCudnn(in.backend, dims, dtype) ? AttentionBackwardCudnn
                                                                         : AttentionBackwardCuda,
                           dims, in, out, lse, dout, gradients, workspace);
  stream.Enqueue({kBackward,
                  std::move(reads),
                  std::move(writes),
                  {{KernelKind::kAttention, cost, gpu, 2 * ModelFlops(dims, in.mask)}},
                  {.cpu = std::move(cpu), .cuda = std::move(cuda)}});
}

}  // namespace fsdp
