// Attention of one head of bf16 on tiles (gemm/gemm_tiles.h), for sources that define what is done
// to a tile. Formulas: attention.h.
//
// Scores are transposed (attention_lanes.h), 64 keys by 64 queries at a time; on the left of a
// product are rows of 32 k, on its right pairs of k:
//   st  [j][q]  = k[j][d] q[q][d]           ot [d][q] += v[j][d] p[j][q]       over d; over j
//   dst [j][q]  = v[j][d] dout[q][d]        dqt[d][q] += k[j][d] ds[j][q]
//   dv  [j][d] += p[j][q] dout[q][d]        dk [j][d] += ds[j][q] q[q][d]      over q
// Factors made of q, k, v and dout are packed once for a head. Sums are those of gemm.h for tiles,
// and pass from a block to the next as fp32: in forward and for dq over blocks of keys in order,
// for dk and dv over blocks of queries in order, then heads. Backward has keys outside, so that
// their sums stay in a near cache while queries pass by.
// Tests: tests/trainer/ops/attention_kernels_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_ON_TILES_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_ON_TILES_H_

#include <cstdint>

#include "trainer/ops/cpu/attention/attention_backward_on_tiles.h"
#include "trainer/ops/cpu/attention/attention_forward_on_tiles.h"
#include "trainer/ops/cpu/attention/attention_kernels.h"

namespace fsdp {
namespace {

template <typename Kernel>
constexpr AttentionKernelsBf16 kOnTiles = {ForwardMemoryOnTiles, BackwardMemoryOnTiles,
                                           ForwardOnTiles<Kernel>, BackwardOnTiles<Kernel>};

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_ON_TILES_H_
