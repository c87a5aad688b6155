#include "trainer/ops/cudnn/attention_cudnn.h"

#include <map>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/round_up.h"
#include "trainer/ops/cudnn/attention_plan.h"
#include "trainer/ops/cudnn/cudnn_api.h"
#include "trainer/ops/cudnn/execution_plan.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {
namespace {

constexpr int64_t kBlock = 256;
constexpr int64_t kElementBytes = 2;  // bf16, fp16.

// The gradients of all scores, in tiles of 64 x 64.
int64_t ScoreBytes(const AttentionDims& d) {
  return d.batch * d.heads * RoundUp(d.seq, 64) * RoundUp(d.keys, 64) * kElementBytes;
}

}  // namespace

bool TakenByCudnn(AttentionBackend backend, const AttentionDims& dims, DType dtype) {
  if (backend == AttentionBackend::kOwn || backend == AttentionBackend::kMath) return false;
  if (dtype != DType::kBFloat16 && dtype != DType::kFloat16) return false;
  if (dims.head_dim % 8 != 0 || dims.head_dim > 128) return false;
  if (dims.batch == 0 || dims.seq == 0 || dims.heads == 0 || dims.keys == 0) return false;
  if (dims.bias) return false;
  return backend != AttentionBackend::kCudnnDeterministic || ScoreBytes(dims) <= int64_t{1} << 30;
}

bool BackwardTakenByCudnn(AttentionBackend backend, const AttentionDims& dims, DType dtype) {
  return backend != AttentionBackend::kCudnnForward && dims.seq > 1 &&
         TakenByCudnn(backend, dims, dtype);
}

CudnnWorkspace CudnnForwardWorkspace(const AttentionDims&) { return {.plan = kBlock}; }

CudnnWorkspace CudnnBackwardWorkspace(const AttentionDims& d, bool deterministic) {
  const int64_t rows = d.batch * d.heads * d.seq;
  CudnnWorkspace w{.plan = kBlock};
  const int64_t key_rows = d.batch * d.heads * d.keys;
  if (d.group() > 1) w.plan += RoundUp(2 * key_rows * d.head_dim * kElementBytes, kBlock);
  if (deterministic) w.plan += ScoreBytes(d);
  w.row_dots = RoundUp(rows * static_cast<int64_t>(sizeof(float)), kBlock);
  if (!deterministic) {
    w.dq = RoundUp(rows * d.head_dim * static_cast<int64_t>(sizeof(float)), kBlock);
  }
  return w;
}

namespace {

using cudnn::AttentionPlan;
using cudnn::AttentionProblem;

// A thread's plans, for its handle.
class Cudnn {
 public:
  static Cudnn& OfThisThread() {
    thread_local Cudnn cudnn;
    return cudnn;
  }

  void Run(CudaStreamHandle stream, const AttentionProblem& problem,
           const AttentionPlan::Operands& operands, float scale, std::byte* workspace) {
    const AttentionPlan& plan = PlanFor(problem);
    plan.Execute(handle_.On(stream), operands, scale, workspace);
  }

  const AttentionPlan& PlanFor(const AttentionProblem& problem) {
    auto at = plans_.find(problem);
    if (at == plans_.end()) {
      at = plans_.try_emplace(problem, handle_.api(), handle_.gpu(), problem).first;
    }
    return at->second;
  }

 private:
  Cudnn() : handle_(cudnn::ThreadHandle::Get()) {}

  const cudnn::ThreadHandle& handle_;
  std::map<AttentionProblem, AttentionPlan> plans_;
};

const std::byte* Begin(const ConstHeads& heads) {
  return heads.tensor.data + heads.begin() * SizeOf(heads.tensor.dtype);
}

AttentionProblem ForwardProblem(const AttentionDims& dims, const AttentionInputs& in) {
  return {.dtype = in.q.tensor.dtype,
          .dims = dims,
          .mask = in.mask,
          .q_stride = in.q.stride(),
          .k_stride = in.k.stride(),
          .v_stride = in.v.stride()};
}

// The problems where q, k and v are in one packed tensor.
std::vector<AttentionProblem> PackedProblems(AttentionBackend backend, const AttentionDims& dims,
                                             DType dtype, bool one_row) {
  const int64_t stride = (dims.heads + 2 * dims.kv_heads) * dims.head_dim;
  AttentionProblem problem{
      .dtype = dtype, .dims = dims, .q_stride = stride, .k_stride = stride, .v_stride = stride};
  std::vector<AttentionProblem> problems = {problem};
  if (one_row && dims.batch != 1) problems.emplace_back(problem).dims.batch = 1;
  if (!BackwardTakenByCudnn(backend, dims, dtype)) return problems;
  problem.backward = true;
  problem.deterministic = backend == AttentionBackend::kCudnnDeterministic;
  problem.dq_stride = problem.dk_stride = problem.dv_stride = stride;
  problems.push_back(problem);
  return problems;
}

// Why this cuDNN's backward cannot be used for this length; empty: it can. The source is
// cudnn-frontend 3929da2, include/cudnn_frontend/node/scaled_dot_product_flash_attention.h. Up to
// 9.15.0, line 1190 gives a graph without a padding mask, as ours is, a mask of full lengths where
// the last 128 keys are not all there; the release notes of 1.16 name the invalid access that this
// avoids. Line 1106 refuses a length of 1.
std::string NoBackward(int version, int64_t seq) {
  constexpr int kMended = 91501, kTile = 128;
  if (seq == 1) return "cuDNN has none of one token";
  if (version >= kMended || seq % kTile == 0) return "";
  return "cuDNN before " + GpuLibraryVersionText(kMended) +
         " is wrong in lengths that are no multiple of " + std::to_string(kTile);
}

}  // namespace

void AttentionForwardCudnn(CudaStreamHandle stream, const AttentionDims& dims,
                           const AttentionInputs& in, const View& out, const View& lse,
                           const View& workspace) {
  Cudnn::OfThisThread().Run(stream, ForwardProblem(dims, in),
                            {{cudnn::kQ, Begin(in.q)},
                             {cudnn::kK, Begin(in.k)},
                             {cudnn::kV, Begin(in.v)},
                             {cudnn::kOut, out.data},
                             {cudnn::kLse, lse.data}},
                            in.Scale(), workspace.data);
}

void AttentionBackwardCudnn(CudaStreamHandle stream, const AttentionDims& dims,
                            const AttentionInputs& in, const ConstView& out, const ConstView& lse,
                            const ConstView& dout, const AttentionGradients& gradients,
                            const View& workspace) {
  AttentionProblem problem = ForwardProblem(dims, in);
  problem.backward = true;
  problem.deterministic = in.backend == AttentionBackend::kCudnnDeterministic;
  problem.dq_stride = gradients.q.stride();
  problem.dk_stride = gradients.k.stride();
  problem.dv_stride = gradients.v.stride();
  const CudnnWorkspace parts = CudnnBackwardWorkspace(dims, problem.deterministic);
  std::byte* const row_dots = workspace.data + parts.plan;
  AttentionPlan::Operands operands{
      {cudnn::kQ, Begin(in.q)},         {cudnn::kK, Begin(in.k)},
      {cudnn::kV, Begin(in.v)},         {cudnn::kOut, out.data},
      {cudnn::kLse, lse.data},          {cudnn::kDout, dout.data},
      {cudnn::kDq, Begin(gradients.q)}, {cudnn::kDk, Begin(gradients.k)},
      {cudnn::kDv, Begin(gradients.v)}, {cudnn::kRowDots, row_dots}};
  if (!problem.deterministic) operands.emplace_back(cudnn::kDqSums, row_dots + parts.row_dots);
  Cudnn::OfThisThread().Run(stream, problem, operands, in.Scale(), workspace.data);
}

void PrepareAttentionCudnn(AttentionBackend backend, const AttentionDims& dims, DType dtype,
                           bool one_row) {
  for (const AttentionProblem& problem : PackedProblems(backend, dims, dtype, one_row)) {
    (void)Cudnn::OfThisThread().PlanFor(problem);
  }
}

FoundAttention FindAttention(AttentionBackend wanted, int gpu, const AttentionDims& dims,
                             DType dtype, bool one_row) {
  const auto own = [](const std::string& why) {
    return FoundAttention{AttentionBackend::kOwn,
                          "own kernels" + (why.empty() ? "" : " (" + why + ")")};
  };
  if (wanted == AttentionBackend::kOwn) return own("");
  if (!TakenByCudnn(wanted, dims, dtype)) {
    return own("cuDNN is for bf16 and fp16, and heads of a multiple of 8, at most 128");
  }
  const cudnn::FoundApi& found = cudnn::FindApi();
  if (found.api == nullptr) return own("no cuDNN: " + found.why_not);
  const std::string no_backward = NoBackward(found.api->version, dims.seq);
  if (!no_backward.empty()) wanted = AttentionBackend::kCudnnForward;
  try {
    const cudnn::Descriptor properties = cudnn::DevicePropertiesOf(*found.api, gpu);
    for (const AttentionProblem& problem : PackedProblems(wanted, dims, dtype, one_row)) {
      (void)AttentionPlan(*found.api, properties, problem);
    }
  } catch (const DeviceError& error) {
    return own(error.what());
  }
  std::string name = "cuDNN " + GpuLibraryVersionText(found.api->version);
  if (!no_backward.empty()) name += ", backward by own kernels (" + no_backward + ")";
  return {wanted, std::move(name)};
}

}  // namespace fsdp
