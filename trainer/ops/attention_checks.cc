#include "trainer/ops/attention_checks.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace fsdp {
namespace {

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

NamedViews QkvOf(const AttentionInputs& in) {
  return {{"q", in.q.tensor}, {"k", in.k.tensor}, {"v", in.v.tensor}};
}

// Whatever of it there is, that results must be apart from.
NamedViews OthersOf(const AttentionInputs& in) {
  NamedViews others;
  if (in.dropout.rate > 0) others.emplace_back("dropout.keys", in.dropout.keys);
  if (in.HasBias()) others.emplace_back("bias.table", in.bias.table);
  if (in.HasLengths()) others.emplace_back("lengths", in.lengths);
  return others;
}

}  // namespace

AttentionDims CheckAttention(const Arguments& args, const AttentionInputs& in) {
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
  const bool ours = in.backend == AttentionBackend::kOwn || in.backend == AttentionBackend::kMath;
  if (in.HasLengths()) {
    args.Check("lengths", in.lengths, DType::kInt32, {s[0]});
    args.Require(ours, "lengths, which only our own kernels have");
  }
  if (!causal && in.HasPositions()) {
    args.Require(ours, "documents under a full mask, which only our own kernels have");
  }
  args.Require(in.dropout.rate >= 0 && in.dropout.rate < 1, "dropout.rate is not in [0, 1)");
  if (in.dropout.rate > 0) {
    args.Check("dropout.keys", in.dropout.keys, DType::kInt32, {s[0], 2});
    args.Require(ours, "dropout, which only our own kernels have");
  }
  if (in.scale) {
    args.Require(*in.scale > 0 && std::isfinite(*in.scale), "scale, want a positive number");
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
    args.Require(ours, "a bias, which only our own kernels have");
  }
  return dims;
}

void CheckAttentionResults(const Arguments& args, const AttentionInputs& in,
                           const NamedViews& results) {
  for (const NamedViews& read : {QkvOf(in), OthersOf(in)}) {
    for (const auto& [name, view] : read) {
      for (const auto& [of, result] : results) args.CheckDisjoint(of, result, name, view);
    }
  }
}

void CheckAttentionGradients(const Arguments& args, const AttentionDims& dims,
                             const AttentionInputs& in, const AttentionGradients& gradients,
                             const NamedViews& read) {
  const DType dtype = in.q.tensor.dtype;
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
    for (const NamedViews& views : {QkvOf(in), read, OthersOf(in)}) {
      for (const auto& [name, view] : views) {
        args.CheckDisjoint(g.name, g.heads.tensor, name, view);
      }
    }
  }
  if (!gradients.HasBias()) return;
  args.Require(dims.bias, "dbias, of no bias");
  args.Check("dbias", gradients.bias, dtype, in.bias.table.shape);
  args.CheckDisjoint("dbias", gradients.bias, "bias.table", in.bias.table);
  for (const Gradient& g : all) {
    args.CheckDisjoint("dbias", gradients.bias, g.name, g.heads.tensor);
  }
  for (const NamedViews& views : {QkvOf(in), read}) {
    for (const auto& [name, view] : views) args.CheckDisjoint("dbias", gradients.bias, name, view);
  }
}

std::vector<Range> ReadsOf(const AttentionInputs& in) {
  std::vector<Range> reads = Tensors<ConstHeads>({in.q, in.k, in.v});
  if (in.HasPositions()) reads.push_back(in.positions);
  if (in.dropout.rate > 0) reads.push_back(in.dropout.keys);
  if (in.HasLengths()) reads.push_back(in.lengths);
  if (in.HasBias()) reads.insert(reads.end(), {in.bias.table, in.bias.buckets});
  return reads;
}

std::vector<Range> WritesOf(const AttentionGradients& gradients) {
  std::vector<Range> writes = Tensors<Heads>({gradients.q, gradients.k, gradients.v});
  if (gradients.HasBias()) writes.push_back(gradients.bias);
  return writes;
}

double HeadBytes(const AttentionDims& d, const ConstHeads& heads, int64_t rows) {
  return static_cast<double>(d.batch * rows * heads.count * d.head_dim *
                             SizeOf(heads.tensor.dtype));
}

double BytesOf(const AttentionDims& d, const AttentionInputs& in) {
  return HeadBytes(d, in.q, d.seq) + HeadBytes(d, in.k, d.keys) + HeadBytes(d, in.v, d.keys);
}

double BytesOf(const AttentionDims& d, const AttentionGradients& gradients) {
  return HeadBytes(d, gradients.q, d.seq) + HeadBytes(d, gradients.k, d.keys) +
         HeadBytes(d, gradients.v, d.keys) +
         (gradients.HasBias() ? static_cast<double>(gradients.bias.bytes()) : 0);
}

double OtherBytesOf(const AttentionInputs& in) {
  const int64_t positions = in.HasPositions() ? in.positions.bytes() : 0;
  const int64_t keys = in.dropout.rate > 0 ? in.dropout.keys.bytes() : 0;
  const int64_t lengths = in.HasLengths() ? in.lengths.bytes() : 0;
  const int64_t bias = in.HasBias() ? in.bias.table.bytes() + in.bias.buckets.bytes() : 0;
  return static_cast<double>(positions + keys + lengths + bias);
}

double AttentionModelFlops(const AttentionDims& d, AttentionMask mask) {
  const double full = 4.0 * d.batch * d.heads * d.seq * d.keys * d.head_dim;
  return mask == AttentionMask::kFull ? full : full / 2;
}

int64_t DistanceBytes(const AttentionDims& d, int64_t samples) {
  return d.bias ? samples * d.heads * d.distances() * static_cast<int64_t>(sizeof(float)) : 0;
}

}  // namespace fsdp
