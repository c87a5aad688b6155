#include "trainer/ops/cudnn/attention_workspace.h"

namespace fsdp {
namespace {

constexpr int64_t kBlock = 256;
constexpr int64_t kElementBytes = 2;  // bf16, fp16.

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

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

}  // namespace fsdp
