// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) in the layout of Hugging Face's
// `rotate_half`: element i of a head's first half is rotated with element i of its second half,
// by the angle position x frequency[i].
#ifndef FSDP_TRAIN_TRAINER_OPS_ROPE_H_
#define FSDP_TRAIN_TRAINER_OPS_ROPE_H_

#include <vector>

#include "trainer/ops/heads.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

//   table[p, 0, i] = factor cos(p frequency[i])      table[p, 1, i] = factor sin(p frequency[i])
// table: [positions, 2, frequencies], fp32, overwritten. It is computed in float64 and rounded
// once, because p times a rounded frequency would be off by p 2^-24. 100 FLOPs per element. No
// result depends on the number of threads.
void RopeTable(Stream& stream, const std::vector<double>& frequencies, double factor, View table);

enum class RopeDirection {
  kForward,   // |Rotates x.
  kBackward,  // |Rotates its gradient: by the negative angle, and times factor as well.
};

// In place, for each token [b, t] of heads x (heads.h), with p = positions[b, t], h = head_dim / 2,
// c = table[p, 0], s = table[p, 1] (backward: -s) and all i < h:
//   x[i], x[h + i] = x[i] c[i] - x[h + i] s[i],  x[h + i] c[i] + x[i] s[i]
// x: fp32, bf16 or fp16: computed in fp32, rounded once. positions: int32 [batch, seq]; table:
// [positions, 2, h], fp32. Every position lies in the table: the loader of a batch has checked it
// (data/check_row.h). Other heads of the tensor are left alone. 3 FLOPs per element. No result
// depends on the number of threads.
void Rope(Stream& stream, ConstView table, ConstView positions, RopeDirection direction,
          const Heads& x);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ROPE_H_
