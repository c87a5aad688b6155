// The keys that a call's queries see.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_MASK_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_MASK_H_

#include "trainer/ops/cuda/attention/attention_call.h"
#include "trainer/ops/cuda/attention/heads_cuda.h"

namespace fsdp {

// The keys that any of a block's queries, [query, query_end), sees, from a multiple of `step` on.
// Whole warps construct it.
template <AttentionKind kind>
struct AttentionKeys {
  int begin, end;

  __device__ AttentionKeys(const AttentionCall& call, int sample, int query, int query_end,
                           int step)
      : begin(call.StartOf<kind>(sample, query) / step * step), end(query_end) {
    if constexpr (kind == AttentionKind::kAny) {
      const int seen = call.Seen<kind>(sample);
      if (!call.causal) end = seen;
      if (call.HasEnds<kind>()) {
        end = begin + step * call.StepsBegunBy<kind>(sample, query_end - 1, begin, seen, step);
      }
      end = min(end, seen);
    }
  }
};

// A head's rows of k or v, only the first of which may be seen. Tiles have zeros in place of the
// others, whose contents therefore do not matter.
template <AttentionKind kind, typename T>
__device__ HeadRowsCuda<const T> SeenRows(const AttentionCall& call,
                                          const HeadsCuda<const T>& heads, int sample, int head) {
  HeadRowsCuda<const T> rows = heads.Rows(sample, head);
  if constexpr (kind == AttentionKind::kAny) rows.rows = call.Seen<kind>(sample);
  return rows;
}

// Whether a query sees a key. `start`: the begin of the query's document.
template <AttentionKind kind>
struct AttentionSees {
  const AttentionCall& call;
  int sample, seen;
  __device__ AttentionSees(const AttentionCall& call, int sample)
      : call(call), sample(sample), seen(call.Seen<kind>(sample)) {}
  __device__ bool operator()(int query, int start, int key) const {
    if constexpr (kind == AttentionKind::kCausal) return key <= query && key >= start;
    return key >= start && key < seen && (!call.causal || key <= query) &&
           (!call.HasEnds<kind>() || call.Start(sample, key) <= query);
  }
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_MASK_H_
