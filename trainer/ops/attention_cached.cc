#include "trainer/ops/attention_cached.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/attention_cached_cpu.h"
#include "trainer/ops/cuda/attention_cached_cuda.h"

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
  args.Require(in.mask == AttentionMask::kCausal, "a full mask, which a cache has not");
  args.Require(!in.HasLengths(), "lengths, which a cache has not");
  args.Require(!in.HasBias(), "a bias, which a cache has not");
  args.Require(!in.scale, "scale, which is 1 / sqrt(head_dim) over a cache");
  args.CheckRank("cache_k", cache_k, dtype, 4);
  const Shape& q = in.q.tensor.shape;
  const AttentionCachedDims shape{q[0], q[1], in.q.count, in.k.count, q[3], cache_k.shape[1]};
  for (const auto& [name, heads] : {std::pair("k", in.k), std::pair("v", in.v)}) {
    const Shape& other = heads.tensor.shape;
    if (other[0] != shape.batch || other[1] != shape.n || other[3] != shape.head_dim ||
        heads.count != shape.kv_heads) {
      args.Fail(std::string(name) + " is " + std::to_string(heads.count) + " heads of " +
                other.ToString() + ", q of " + q.ToString());
    }
  }
  args.Require(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
               "the heads of k, want a divisor of those of q");
  const Shape cache{shape.batch, shape.capacity, shape.kv_heads, shape.head_dim};
  args.Check("cache_k", cache_k, dtype, cache);
  args.Check("cache_v", cache_v, dtype, cache);
  args.Check("positions", in.positions, DType::kInt32, {shape.batch, shape.n});
  args.Check("out", out, dtype, {shape.batch, shape.n, shape.heads, shape.head_dim});
  const std::pair<const char*, View> results[] = {
      {"cache_k", cache_k}, {"cache_v", cache_v}, {"out", out}, {"workspace", workspace}};
  for (const auto& [name, result] : results) {
    args.CheckDisjoint(name, result, "q", in.q.tensor);
    args.CheckDisjoint(name, result, "k", in.k.tensor);
    args.CheckDisjoint(name, result, "v", in.v.tensor);
    args.CheckDisjoint(name, result, "positions", in.positions);
    for (const auto& [other_name, other] : results) {
      if (other_name == name) break;
      args.CheckDisjoint(other_name, other, name, result);
    }
  }
  args.CheckWorkspace(workspace,
                      AttentionCachedWorkspaceBytes(shape, dtype, stream.device().kernel_type()));

  const double out_bytes = static_cast<double>(out.bytes());
  const Cost cost{.flops = 4 * static_cast<double>(out.NumElements() * shape.capacity),
                  .bytes_read = 2 * out_bytes + static_cast<double>(2 * cache_k.bytes()),
                  .bytes_written = 2 * out_bytes};
  const OnGpu gpu{.launches = out.NumElements() > 0 ? 2 : 0};  // Remember, then attend.
  stream.Enqueue({kOp,
                  {in.q.tensor, in.k.tensor, in.v.tensor, in.positions},
                  {cache_k, cache_v, out, workspace},
                  {{KernelKind::kAttention, cost, gpu}},
                  {.cpu = OnCpu(AttentionCachedCpu, shape, in, cache_k, cache_v, out, workspace),
                   .cuda = OnCuda(AttentionCachedCuda, shape, in, cache_k, cache_v, out)}});
}

}  // namespace fsdp
