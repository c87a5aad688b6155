#include "trainer/ops/attention_cached.h"

#include <cmath>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/attention_checks.h"
#include "trainer/ops/cpu/attention_cached_cpu.h"
#include "trainer/ops/cuda/attention_cached_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

namespace {

constexpr const char* kOp = "attention_cached";

}  // namespace

int64_t AttentionCachedWorkspaceBytes(const AttentionCachedDims& dims, DType dtype,
                                      DeviceType device) {
  Arguments(kOp).CheckHasKernels("q", dtype, kFloatDTypes, device);
  if (device != DeviceType::kCpu) return 0;
  return dims.batch * dims.kv_heads * ScoresOfAGroup(dims) * static_cast<int64_t>(sizeof(float));
}

void AttentionCached(Stream& stream, const AttentionInputs& in, View cache_k, View cache_v,
                     View out, View workspace) {
  const Arguments args(kOp);
  const DType dtype = in.q.tensor.dtype;
  args.CheckDType("q", dtype, kFloatDTypes);
  CheckHeads(args, "q", in.q, dtype);
  CheckHeads(args, "k", in.k, dtype);
  CheckHeads(args, "v", in.v, dtype);
  args.Require(in.dropout.rate == 0, "dropout.rate, want 0: nothing is trained over a cache");
  const bool causal = in.mask == AttentionMask::kCausal;
  args.Require(!causal || !in.HasLengths(), "lengths, which a cache of its own tokens has not");
  if (in.scale) {
    args.Require(*in.scale > 0 && std::isfinite(*in.scale), "scale, want a positive number");
  }
  if (causal) {
    args.CheckRank("cache_k", cache_k, dtype, 4);
  } else {
    args.Require(cache_k.data == nullptr && cache_v.data == nullptr,
                 "a cache, where all keys are there");
  }
  const Shape& q = in.q.tensor.shape;
  const AttentionCachedDims shape{q[0],       q[1], in.q.count,
                                  in.k.count, q[3], (causal ? cache_k : in.k.tensor).shape[1]};
  for (const auto& [name, heads] : {std::pair("k", in.k), std::pair("v", in.v)}) {
    const Shape& other = heads.tensor.shape;
    if (other[0] != shape.batch || other[1] != (causal ? shape.n : shape.capacity) ||
        other[3] != shape.head_dim || heads.count != shape.kv_heads) {
      args.Fail(std::string(name) + " is " + std::to_string(heads.count) + " heads of " +
                other.ToString() + ", q of " + q.ToString());
    }
  }
  args.Require(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
               "the heads of k, want a divisor of those of q");
  args.Require(shape.head_dim >= 1 && shape.head_dim <= kMaxHeadDim, "head_dim, want in [1, 256]");
  args.Check("out", out, dtype, {shape.batch, shape.n, shape.heads, shape.head_dim});
  NamedViews read = {{"q", in.q.tensor}, {"k", in.k.tensor}, {"v", in.v.tensor}};
  NamedViews results = {{"out", out}, {"workspace", workspace}};
  if (causal) {
    const Shape cache{shape.batch, shape.capacity, shape.kv_heads, shape.head_dim};
    args.Check("cache_k", cache_k, dtype, cache);
    args.Check("cache_v", cache_v, dtype, cache);
    results.insert(results.begin(), {{"cache_k", cache_k}, {"cache_v", cache_v}});
  }
  if (causal || in.HasBias()) {
    args.Check("positions", in.positions, DType::kInt32, {shape.batch, shape.n});
    read.emplace_back("positions", in.positions);
  } else {
    args.Require(!in.HasPositions(), "positions, which a full mask has with a bias alone");
  }
  if (in.HasLengths()) {
    args.Check("lengths", in.lengths, DType::kInt32, {shape.batch});
    read.emplace_back("lengths", in.lengths);
  }
  if (in.HasBias()) {
    args.CheckRank("bias.table", in.bias.table, dtype, 2);
    args.Check("bias.table", in.bias.table, dtype, {shape.heads, in.bias.table.shape[1]});
    args.CheckRank("bias.buckets", in.bias.buckets, DType::kInt32, 1);
    args.Require(in.bias.buckets.shape[0] >= shape.capacity,
                 "bias.buckets, want one for each key and position");
    read.emplace_back("bias.table", in.bias.table);
    read.emplace_back("bias.buckets", in.bias.buckets);
  }
  for (const auto& [name, result] : results) {
    for (const auto& [of, view] : read) args.CheckDisjoint(name, result, of, view);
    for (const auto& [other_name, other] : results) {
      if (other_name == name) break;
      args.CheckDisjoint(other_name, other, name, result);
    }
  }
  args.CheckWorkspace(workspace,
                      AttentionCachedWorkspaceBytes(shape, dtype, stream.device().kernel_type()));

  const auto out_bytes = static_cast<double>(out.bytes());
  const double keys =
      2.0 * shape.batch * shape.capacity * shape.kv_heads * shape.head_dim * SizeOf(dtype);
  const double bias =
      in.HasBias() ? static_cast<double>(in.bias.table.bytes() + in.bias.buckets.bytes()) : 0;
  const Cost cost{.flops = 4 * static_cast<double>(out.NumElements() * shape.capacity),
                  .bytes_read = (causal ? 2 : 1) * out_bytes + keys + bias,
                  .bytes_written = (causal ? 2 : 1) * out_bytes};
  const OnGpu gpu{.launches = out.NumElements() > 0 ? (causal ? 2 : 1) : 0};  // Remember, attend.
  Operation operation{kOp, {in.q.tensor, in.k.tensor, in.v.tensor}, {}, {}};
  for (size_t i = 3; i < read.size(); ++i) operation.reads.push_back(read[i].second);
  if (causal) operation.writes = {cache_k, cache_v};
  operation.writes.insert(operation.writes.end(), {out, workspace});
  operation.costs = {{KernelKind::kAttention, cost, gpu}};
  operation.kernels = {
      .cpu = OnCpu(AttentionCachedCpu, shape, in, cache_k, cache_v, out, workspace),
      .cuda = OnCuda(AttentionCachedCuda, shape, in, cache_k, cache_v, out)};
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
