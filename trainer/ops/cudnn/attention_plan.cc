#include "trainer/ops/cudnn/attention_plan.h"

#include <limits>
#include <string>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/ops/cudnn/attention_cudnn.h"

namespace fsdp::cudnn {
namespace {

class Builder {
 public:
  Builder(const Api& api, const AttentionProblem& problem)
      : graph_(api),
        problem_(problem),
        dims_(problem.dims),
        half_(problem.dtype == DType::kBFloat16 ? DataType::kBFloat16 : DataType::kHalf),
        rows_{dims_.batch, dims_.heads, dims_.seq, 1},
        heads_{dims_.batch, dims_.heads, dims_.seq, dims_.head_dim},
        scores_{dims_.batch, dims_.heads, dims_.seq, dims_.keys},
        scale_(graph_.Scalar(kScale)) {
    FSDP_CHECK(problem.dtype == DType::kBFloat16 || problem.dtype == DType::kFloat16);
  }

  OperationGraph Forward() && {
    const Tensor q = Rows(kQ, dims_.seq, dims_.heads, problem_.q_stride);
    const Tensor k = Columns(kK, problem_.k_stride);
    const Tensor v = Rows(kV, dims_.keys, dims_.kv_heads, problem_.v_stride);
    const Tensor out = Rows(kOut, dims_.seq, dims_.heads, dims_.heads * dims_.head_dim);
    const Tensor lse = graph_.InMemory(kLse, rows_, PackedStrides(rows_), DataType::kFloat);

    const Tensor s = Masked(Scores(q, k));
    const Tensor max = graph_.Reduce(ReduceTensorOp::kMax, s, graph_.Virtual(rows_));
    const Tensor e = Exp(Binary(PointwiseMode::kSub, s, max));
    const Tensor sum = graph_.Reduce(ReduceTensorOp::kAdd, e, graph_.Virtual(rows_));
    const Tensor log = graph_.Pointwise(PointwiseMode::kLog, sum, graph_.Virtual(rows_));
    graph_.Pointwise(PointwiseMode::kAdd, max, log, lse);
    const Tensor p = graph_.Pointwise(PointwiseMode::kDiv, e, sum, graph_.Virtual(scores_, half_));
    graph_.Matmul(p, v, out);
    return std::move(graph_);
  }

  OperationGraph Backward() && {
    const int64_t out_stride = dims_.heads * dims_.head_dim;
    const Tensor q = Rows(kQ, dims_.seq, dims_.heads, problem_.q_stride);
    const Tensor k = Columns(kK, problem_.k_stride), v = Columns(kV, problem_.v_stride);
    const Tensor out = Rows(kOut, dims_.seq, dims_.heads, out_stride);
    const Tensor dout = Rows(kDout, dims_.seq, dims_.heads, out_stride);
    const Tensor lse = graph_.InMemory(kLse, rows_, PackedStrides(rows_), DataType::kFloat);
    const Tensor dq = Rows(kDq, dims_.seq, dims_.heads, problem_.dq_stride);
    const Tensor dk = Rows(kDk, dims_.keys, dims_.kv_heads, problem_.dk_stride);
    const Tensor dv = Rows(kDv, dims_.keys, dims_.kv_heads, problem_.dv_stride);

    // dout . out. The factor, one, is where dropout's would stand.
    const Tensor products = graph_.Pointwise(
        PointwiseMode::kMul, dout, out,
        graph_.Virtual(heads_, RowStrides(dims_.seq, out_stride), DataType::kFloat));
    const Tensor dots = graph_.Pointwise(
        PointwiseMode::kMul, graph_.Reduce(ReduceTensorOp::kAdd, products, graph_.Virtual(rows_)),
        graph_.Scalar(kOne),
        graph_.InMemory(kRowDots, rows_, PackedStrides(rows_), DataType::kFloat));

    // p = exp(s - lse), dv = p^T dout
    const Tensor s = Binary(PointwiseMode::kSub, Scores(q, k), lse);
    const Tensor p = Exp(Masked(s));
    SumOfGroup(Transposed(p), dout, dv);

    // ds = scale p (dout v^T - dout . out), dk = ds^T q
    const Tensor dp = graph_.Matmul(dout, v, graph_.Virtual(scores_));
    const Tensor unscaled = Binary(PointwiseMode::kMul, Binary(PointwiseMode::kSub, dp, dots), p);
    const Tensor ds =
        graph_.Pointwise(PointwiseMode::kMul, unscaled, scale_, graph_.Virtual(scores_, half_));
    SumOfGroup(Transposed(ds), q, dk);

    // dq = ds k
    const Tensor k_rows =
        graph_.Reshape(k, graph_.Virtual({dims_.batch, dims_.kv_heads, dims_.keys, dims_.head_dim},
                                         RowStrides(dims_.keys, problem_.k_stride), half_));
    if (problem_.deterministic) {
      graph_.Matmul(ds, k_rows, dq);
    } else {
      const Tensor sums = graph_.InMemory(kDqSums, heads_, PackedStrides(heads_), DataType::kFloat);
      graph_.Pointwise(PointwiseMode::kIdentity, graph_.Matmul(ds, k_rows, sums), dq);
    }
    return std::move(graph_);
  }

 private:
  // Strides of [batch, heads, rows, head_dim].
  Dims RowStrides(int64_t rows, int64_t stride) const {
    return {rows * stride, dims_.head_dim, stride, 1};
  }
  Tensor Rows(AttentionTensor id, int64_t rows, int64_t heads, int64_t stride) {
    return graph_.InMemory(id, {dims_.batch, heads, rows, dims_.head_dim}, RowStrides(rows, stride),
                           half_);
  }
  // k or v with a head's rows as columns.
  Tensor Columns(AttentionTensor id, int64_t stride) {
    return graph_.InMemory(id, {dims_.batch, dims_.kv_heads, dims_.head_dim, dims_.keys},
                           {dims_.keys * stride, dims_.head_dim, 1, stride}, half_);
  }

  Tensor Binary(PointwiseMode mode, const Tensor& x, const Tensor& b) {
    return graph_.Pointwise(mode, x, b, graph_.Virtual(x.dims));
  }
  Tensor Exp(const Tensor& x) {
    return graph_.Pointwise(PointwiseMode::kExp, x, graph_.Virtual(x.dims));
  }
  Tensor Scores(const Tensor& q, const Tensor& k) {
    return Binary(PointwiseMode::kMul, graph_.Matmul(q, k, graph_.Virtual(scores_)), scale_);
  }
  // Scores that a query does not see become minus infinity.
  Tensor Masked(const Tensor& s) {
    if (problem_.mask == AttentionMask::kFull) return s;
    const Tensor query = graph_.Index(s, 2), key = graph_.Index(s, 3);
    return graph_.Select(s, graph_.Scalar(kNegativeInfinity), graph_.GreaterOrEqual(query, key));
  }
  Tensor Transposed(const Tensor& x) {
    const int64_t seq = dims_.seq, keys = dims_.keys;
    return graph_.Reshape(x,
                          graph_.Virtual({dims_.batch, dims_.heads, keys, seq},
                                         {dims_.heads * seq * keys, seq * keys, 1, keys}, half_));
  }
  // y = a b, where each head of y has the sum over its group of a's and b's heads.
  void SumOfGroup(const Tensor& a, const Tensor& b, const Tensor& y) {
    if (dims_.group() == 1) {
      graph_.Matmul(a, b, y);
    } else {
      const Dims all{dims_.batch, dims_.heads, dims_.keys, dims_.head_dim};
      graph_.Reduce(ReduceTensorOp::kAdd, graph_.Matmul(a, b, graph_.Virtual(all, half_)), y);
    }
  }

  OperationGraph graph_;
  const AttentionProblem& problem_;
  const AttentionDims& dims_;
  const DataType half_;
  const Dims rows_, heads_, scores_;
  const Tensor scale_;
};

}  // namespace

OperationGraph AttentionGraph(const Api& api, const AttentionProblem& problem) {
  Builder builder(api, problem);
  return problem.backward ? std::move(builder).Backward() : std::move(builder).Forward();
}

namespace {

PlanLimits LimitsOf(const AttentionProblem& p) {
  PlanLimits limits{.bytes = p.backward ? CudnnBackwardWorkspace(p.dims, p.deterministic).plan
                                        : CudnnForwardWorkspace(p.dims).plan};
  if (p.deterministic) limits.refused.push_back(NumericalNote::kNondeterministic);
  return limits;
}

std::string NameOf(const AttentionProblem& p) {
  return std::string("cuDNN: attention ") + (p.backward ? "backward" : "forward") + " of " +
         std::to_string(p.dims.batch) + " x " + std::to_string(p.dims.seq) + " tokens, " +
         (p.mask == AttentionMask::kFull ? std::to_string(p.dims.keys) + " keys, " : "") +
         std::to_string(p.dims.heads) + ":" + std::to_string(p.dims.kv_heads) + " x " +
         std::to_string(p.dims.head_dim);
}

}  // namespace

AttentionPlan::AttentionPlan(const Api& api, const Descriptor& gpu, const AttentionProblem& problem)
    : backward_(problem.backward),
      operations_(AttentionGraph(api, problem)),
      graph_(operations_.Finish()),
      plan_(api, gpu, graph_, LimitsOf(problem), NameOf(problem)),
      masked_(problem.mask == AttentionMask::kCausal),
      negative_infinity_(-std::numeric_limits<float>::infinity()) {}

void AttentionPlan::Execute(Handle handle, const Operands& operands, float scale,
                            std::byte* workspace) const {
  GraphOperands all;
  for (const auto& [id, address] : operands) all.Add(id, address);
  all.Add(kScale, &scale);
  if (masked_) all.Add(kNegativeInfinity, &negative_infinity_);
  if (backward_) all.Add(kOne, &one_);
  plan_.Execute(handle, all, workspace, "attention");
}

}  // namespace fsdp::cudnn
