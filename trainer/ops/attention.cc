#include "trainer/ops/attention.h"

#include "trainer/ops/arguments.h"
#include "trainer/ops/attention_cpu.h"

namespace fsdp {
namespace {

AttentionDims CheckQkv(const Arguments& args, const ConstView& qkv) {
  args.CheckRank("qkv", qkv, DType::kFloat32, 5);
  const Shape& s = qkv.shape;
  args.Require(s[2] == 3, "qkv, want [batch, seq, 3, heads, head_dim]");
  args.Require(s[4] >= 1 && s[4] <= kMaxHeadDim, "head_dim, want in [1, 256]");
  return {.batch = s[0], .seq = s[1], .heads = s[3], .head_dim = s[4]};
}

// Multiply-adds of one product of [seq, head_dim] matrices under the causal mask, all heads.
double CausalProduct(const AttentionDims& d) {
  return 0.5 * d.batch * d.heads * d.seq * (d.seq + 1) * d.head_dim;
}

}  // namespace

void AttentionForward(Stream& stream, ConstView qkv, View out, View lse) {
  constexpr const char* kOp = "attention_forward";
  const Arguments args(kOp);
  const AttentionDims dims = CheckQkv(args, qkv);
  args.Check("out", out, DType::kFloat32, {dims.batch, dims.seq, dims.heads, dims.head_dim});
  args.Check("lse", lse, DType::kFloat32, {dims.batch, dims.heads, dims.seq});
  args.CheckDisjoint("out", out, "qkv", qkv);
  args.CheckDisjoint("lse", lse, "qkv", qkv);
  args.CheckDisjoint("lse", lse, "out", out);
  const Cost cost{.flops = 2 * 2 * CausalProduct(dims),
                  .bytes_read = static_cast<double>(qkv.bytes()),
                  .bytes_written = static_cast<double>(out.bytes() + lse.bytes())};
  stream.Enqueue({kOp, {qkv}, {out, lse}, cost}, [=](ThreadPool& pool) {
    AttentionForwardCpu(pool, dims, qkv.As<float>(), out.As<float>(), lse.As<float>());
  });
}

void AttentionBackward(Stream& stream, ConstView qkv, ConstView out, ConstView lse, ConstView dout,
                       View dqkv) {
  constexpr const char* kOp = "attention_backward";
  const Arguments args(kOp);
  const AttentionDims dims = CheckQkv(args, qkv);
  args.Check("out", out, DType::kFloat32, {dims.batch, dims.seq, dims.heads, dims.head_dim});
  args.Check("lse", lse, DType::kFloat32, {dims.batch, dims.heads, dims.seq});
  args.Check("dout", dout, DType::kFloat32, out.shape);
  args.Check("dqkv", dqkv, DType::kFloat32, qkv.shape);
  args.CheckDisjoint("dqkv", dqkv, "qkv", qkv);
  args.CheckDisjoint("dqkv", dqkv, "out", out);
  args.CheckDisjoint("dqkv", dqkv, "lse", lse);
  args.CheckDisjoint("dqkv", dqkv, "dout", dout);
  const Cost cost{.flops = 5 * 2 * CausalProduct(dims),
                  .bytes_read = static_cast<double>(qkv.bytes() + 2 * out.bytes() + lse.bytes()),
                  .bytes_written = static_cast<double>(dqkv.bytes())};
  stream.Enqueue({kOp, {qkv, out, lse, dout}, {dqkv}, cost}, [=](ThreadPool& pool) {
    AttentionBackwardCpu(pool, dims, qkv.As<float>(), out.As<float>(), lse.As<float>(),
                         dout.As<float>(), dqkv.As<float>());
  });
}

}  // namespace fsdp
