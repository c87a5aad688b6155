#include "trainer/ops/attention_math.h"

#include <string>
#include <utility>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/attention_backends.h"
#include "trainer/ops/attention_checks.h"
#include "trainer/ops/norm.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr const char* kForward = "attention_math_forward";
constexpr const char* kBackward = "attention_math_backward";

AttentionDims CheckMath(const Arguments& args, const AttentionInputs& in,
                        const HeadMixing& mixing) {
  const AttentionDims dims = CheckAttention(args, in);
  args.Require(in.backend == AttentionBackend::kMath, "backend, want kMath");
  args.Require(in.mask == AttentionMask::kCausal || !in.HasPositions(),
               "documents, which attention.h alone keeps apart");
  if (!mixing.Mixes()) return dims;
  const DType dtype = in.q.tensor.dtype;
  args.CheckWeight("mixing.matrix", mixing.matrix, dtype, {dims.heads, dims.heads});
  args.CheckWeight("mixing.weight", mixing.weight, dtype, {dims.heads});
  args.CheckWeight("mixing.bias", mixing.bias, dtype, {dims.heads});
  args.Require(dims.heads <= kMaxMixedHeads, "mixing, want at most 64 heads");
  args.Require(mixing.eps >= kMinLayerNormEps, "mixing.eps, want >= kMinLayerNormEps");
  return dims;
}

// The numbers of a call, and the bytes in its memory.
struct Counts {
  double pairs, scores, product;  // Query-key pairs; bytes of their scores; FLOPs of a product.
  double half_model;              // MFU's of a product.
  double mixing, mixing_model;    // Bytes of the parameters; FLOPs of a product that MFU counts.
  int64_t queries, keys;          // Rows of q's heads, and of k's.
  bool any;                       // Is there a pair?
  Product of_pairs, of_queries, of_keys;  // By whose rows the result has.

  Counts(const AttentionDims& d, const AttentionInputs& in, const HeadMixing& m)
      : pairs(1.0 * d.batch * d.heads * d.seq * d.keys),
        scores(pairs * SizeOf(in.q.tensor.dtype)),
        product(2 * pairs * d.head_dim),
        half_model(AttentionModelFlops(d, in.mask) / 2),
        mixing(m.Mixes() ? static_cast<double>(m.matrix.bytes() + m.weight.bytes() + m.bias.bytes())
                         : 0),
        mixing_model(m.Mixes() ? 2 * pairs * d.heads : 0),
        queries(d.batch * d.seq * d.heads),
        keys(d.heads > 0 ? d.batch * d.keys * d.kv_heads : 0),
        any(pairs > 0) {
    const DType dtype = in.q.tensor.dtype;
    const int64_t heads = d.batch * d.heads;
    of_pairs = {.m = d.seq, .n = d.keys, .k = d.head_dim, .count = heads, .dtype = dtype};
    of_queries = {.m = d.seq, .n = d.head_dim, .k = d.keys, .count = heads, .dtype = dtype};
    of_keys = {.m = d.keys, .n = d.head_dim, .k = d.seq, .count = heads, .dtype = dtype};
  }

  // A product of every head of every sample, all at once.
  KernelCost Multiply(const Product& shape, double read, double written, bool launched) const {
    KernelCost kernel(KernelKind::kAttention,
                      {.flops = product, .bytes_read = read, .bytes_written = written},
                      {.launches = launched}, half_model);
    kernel.product = shape;
    return kernel;
  }
};

void CheckWeights(const Arguments& args, const AttentionInputs& in, const HeadMixing& mixing,
                  const ConstView& weights, const Shape& shape) {
  if (AttentionHasWeights(in.dropout, mixing)) {
    args.Check("weights", weights, in.q.tensor.dtype, shape);
  } else {
    args.Require(weights.data == nullptr, "weights, which are the probabilities");
  }
}

int64_t Aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }

// ds; behind it the sums for the gradient of a bias; and behind them those for mixing's.
AttentionMathWorkspace WorkspaceIn(const AttentionDims& d, DType dtype, bool mixes,
                                   const View& workspace) {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  const Shape shape{d.batch, d.heads, d.seq, d.keys};
  std::byte* const bias = workspace.data + Aligned(shape.NumElements() * SizeOf(dtype));
  const int64_t bias_bytes = DistanceBytes(d, d.batch);
  const int64_t parts = mixes ? HeadMixingParts(d.batch * d.seq) : 0;
  return {View(workspace.data, dtype, shape), View(bias, DType::kFloat32, {bias_bytes / kFloat}),
          View(bias + bias_bytes, DType::kFloat32, {parts, HeadMixingSums(d.heads)})};
}

}  // namespace

bool AttentionHasWeights(const AttentionDropout& dropout, const HeadMixing& mixing) {
  return dropout.rate > 0 || mixing.Mixes();
}

void AttentionMathForward(Stream& stream, const AttentionInputs& in, const HeadMixing& mixing,
                          View probabilities, View weights, View out) {
  const Arguments args(kForward);
  const AttentionDims d = CheckMath(args, in, mixing);
  const DType dtype = in.q.tensor.dtype;
  const Shape scores{d.batch, d.heads, d.seq, d.keys};
  const bool apart = AttentionHasWeights(in.dropout, mixing), drops = in.dropout.rate > 0;
  args.Check("probabilities", probabilities, dtype, scores);
  CheckWeights(args, in, mixing, weights, scores);
  args.Check("out", out, dtype, {d.batch, d.seq, d.heads, d.head_dim});
  NamedViews results = {{"probabilities", probabilities}, {"out", out}};
  args.CheckDisjoint("out", out, "probabilities", probabilities);
  if (apart) {
    args.CheckDisjoint("weights", weights, "probabilities", probabilities);
    args.CheckDisjoint("weights", weights, "out", out);
    results.emplace_back("weights", weights);
  }
  CheckAttentionResults(args, in, results);

  const Counts n(d, in, mixing);
  const double q = HeadBytes(d, in.q, d.seq), k = HeadBytes(d, in.k, d.keys);
  const bool softmax_drops = drops && !mixing.Mixes();
  Operation operation{kForward, ReadsOf(in), {probabilities, out}, {}};
  operation.costs = {n.Multiply(n.of_pairs, q + k, n.scores, n.any),
                     {{.flops = (5 + (d.bias ? 1 : 0) + (softmax_drops ? kDrawFlops : 0)) * n.pairs,
                       .bytes_read = n.scores + OtherBytesOf(in),
                       .bytes_written = n.scores * (softmax_drops ? 2 : 1)},
                      OnGpu{.launches = n.any}}};
  if (mixing.Mixes()) {
    operation.reads.insert(operation.reads.end(), {mixing.matrix, mixing.weight, mixing.bias});
    operation.costs.push_back({KernelKind::kMemory,
                               {.flops = n.mixing_model + (8 + (drops ? kDrawFlops : 0)) * n.pairs,
                                .bytes_read = n.scores + n.mixing,
                                .bytes_written = n.scores},
                               {.launches = n.any},
                               n.mixing_model});
  }
  operation.costs.push_back(n.Multiply(n.of_queries, n.scores + k, static_cast<double>(out.bytes()),
                                       out.NumElements() > 0));
  if (apart) operation.writes.push_back(weights);
  operation.kernels = {
      .cpu = OnCpu(AttentionMathForwardCpu, d, in, mixing, probabilities, weights, out),
      .cuda = OnCuda(AttentionMathForwardCuda, d, in, mixing, probabilities, weights, out)};
  stream.Enqueue(std::move(operation));
}

int64_t AttentionMathBackwardWorkspaceBytes(const AttentionDims& d, DType dtype, DeviceType device,
                                            bool mixes) {
  Arguments(kBackward).CheckHasKernels("q", dtype, kFloatDTypes, device);
  const int64_t scores = Aligned(d.batch * d.heads * d.seq * d.keys * SizeOf(dtype));
  const int64_t parts = mixes ? HeadMixingParts(d.batch * d.seq) : 0;
  return scores + DistanceBytes(d, d.batch) +
         parts * HeadMixingSums(d.heads) * static_cast<int64_t>(sizeof(float));
}

void AttentionMathBackward(Stream& stream, const AttentionInputs& in, const HeadMixing& mixing,
                           ConstView probabilities, ConstView weights, ConstView dout,
                           const AttentionGradients& gradients,
                           const HeadMixingGradients& mixing_gradients, View workspace) {
  const Arguments args(kBackward);
  const AttentionDims d = CheckMath(args, in, mixing);
  const DType dtype = in.q.tensor.dtype;
  const Shape scores{d.batch, d.heads, d.seq, d.keys};
  const bool mixes = mixing.Mixes(), drops = in.dropout.rate > 0;
  args.Check("probabilities", probabilities, dtype, scores);
  CheckWeights(args, in, mixing, weights, scores);
  args.Check("dout", dout, dtype, {d.batch, d.seq, d.heads, d.head_dim});
  NamedViews read = {{"probabilities", probabilities}, {"dout", dout}};
  const bool apart = AttentionHasWeights(in.dropout, mixing);
  if (apart) read.emplace_back("weights", weights);
  CheckAttentionGradients(args, d, in, gradients, read);
  args.CheckWorkspace(workspace, AttentionMathBackwardWorkspaceBytes(
                                     d, dtype, stream.device().kernel_type(), mixes));
  Operation operation{kBackward, ReadsOf(in), WritesOf(gradients), {}};
  operation.reads.insert(operation.reads.end(), {probabilities, dout});
  if (apart) operation.reads.push_back(weights);

  const Counts n(d, in, mixing);
  const double q = HeadBytes(d, in.q, d.seq), k = HeadBytes(d, in.k, d.keys);
  operation.costs = {n.Multiply(n.of_pairs, q + k, n.scores, n.any)};  // dw
  args.Require(mixes || mixing_gradients.count() == 0, "gradients of mixing, of none");
  if (mixes) {
    operation.reads.insert(operation.reads.end(), {mixing.matrix, mixing.weight});
    const struct {
      const char* name;
      const std::optional<View>& view;
      Shape shape;
    } all[] = {{"dmatrix", mixing_gradients.matrix, {d.heads, d.heads}},
               {"dweight", mixing_gradients.weight, {d.heads}},
               {"dbias", mixing_gradients.bias, {d.heads}}};
    double sums = 0;
    for (const auto& [name, view, shape] : all) {
      if (!view) continue;
      args.CheckGradient(name, *view, shape);
      operation.writes.push_back(*view);
      sums += static_cast<double>(view->bytes());
    }
    const int64_t parts = HeadMixingParts(d.batch * d.seq);
    operation.costs.push_back(
        {KernelKind::kMemory,
         {.flops = 3 * n.mixing_model + (20 + (drops ? kDrawFlops : 0)) * n.pairs,
          .bytes_read = 2 * n.scores + n.mixing + sums,
          .bytes_written = n.scores + sums},
         {.launches = n.any ? 1 + mixing_gradients.count() : 0,
          .extra_bytes = 2.0 * sizeof(float) * parts * HeadMixingSums(d.heads)},
         2 * n.mixing_model});
  }
  operation.costs.push_back({{.flops = (5 + (drops ? kDrawFlops : 0)) * n.pairs,
                              .bytes_read = 2 * n.scores + OtherBytesOf(in),
                              .bytes_written = n.scores},
                             OnGpu{.launches = n.any}});                                // ds
  operation.costs.push_back(n.Multiply(n.of_queries, n.scores + k, q, n.queries > 0));  // dq
  operation.costs.push_back(n.Multiply(n.of_keys, n.scores + q, k, n.keys > 0));        // dk
  operation.costs.push_back(n.Multiply(n.of_keys, n.scores + q, k, n.keys > 0));        // dv
  if (gradients.HasBias()) {
    const int64_t sums = DistanceBytes(d, d.batch);
    operation.costs.push_back(
        {{.flops = n.pairs,
          .bytes_read = n.scores + static_cast<double>(in.bias.buckets.bytes()),
          .bytes_written = static_cast<double>(gradients.bias.bytes())},
         {.launches = (sums > 0 ? 1 : 0) + (gradients.bias.NumElements() > 0 ? 1 : 0),
          .extra_bytes = 2.0 * static_cast<double>(sums)}});
  }
  operation.writes.push_back(workspace);
  const AttentionMathWorkspace parts = WorkspaceIn(d, dtype, mixes, workspace);
  operation.kernels = {.cpu = OnCpu(AttentionMathBackwardCpu, d, in, mixing, probabilities, weights,
                                    dout, gradients, mixing_gradients, parts),
                       .cuda = OnCuda(AttentionMathBackwardCuda, d, in, mixing, probabilities,
                                      weights, dout, gradients, mixing_gradients, parts)};
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
