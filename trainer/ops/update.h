// What the ops that update a flat shard have in common (adamw.h, sgd.h): its dtypes, how results
// are rounded, and what else is written in the same pass.
//   p        [n], fp32 or bf16: the master weights, a flat shard.
//   states   [n], all fp32 or all bf16: what the rule keeps of an element.
//   g        [n], fp32, bf16 or fp16, converted exactly.
// Arithmetic is fp32. A result that is kept in bf16 is rounded stochastically (a finite value to
// one of its two neighbours, by its distance from them; it stays finite), the next step goes on
// with what is kept, and so does all else that is written. A draw is keyed by (seed, number of the
// update, p or which state, tensor, element in that tensor): the last two are said by the rules
// (element_rules.h), the number is of `factors`. It counts updates that have landed, this one
// among them, which is what a checkpoint holds: so no bit depends on ranks, sharding factor,
// wrapping, threads or a resume, and a step that is skipped draws nothing.
//   Skipping  A coefficient that is not finite changes nothing at all: all that would be written
//             keeps its bits, but the copy, which is p's even then. It may lie where another
//             shard's has been.
//   Padding   Elements that are exactly 0 in p, g and the states (and the average) stay exactly 0.
//   Threads   Element by element: no result depends on their number, nor, from the same factors, on
//             the type of device.
#ifndef FSDP_TRAIN_TRAINER_OPS_UPDATE_H_
#define FSDP_TRAIN_TRAINER_OPS_UPDATE_H_

#include <cstdint>
#include <initializer_list>

#include "trainer/ops/arguments.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Beside the update, from p as it is kept then. Empty views: not wanted.
struct UpdateExtras {
  uint64_t seed = 0;  // Of the rounding to bf16, wherever there is any.
  View copy = {};     // [n], fp32, bf16 or fp16: p, rounded to nearest, ties to even (cast.h).
  // [n], fp32: an exponential moving average (Polyak and Juditsky 1992; as torch.optim.swa_utils'
  // get_ema_multi_avg_fn computes it), average += (1 - decay) (p - average).
  View average = {};
  double decay = 0;  // In [0, 1). 1 - decay is computed in float64 and rounded once.
};

// What an update works on, as its kernel gets it.
struct UpdateOperands {
  ConstView rules, factors, coefficient, g;
  View p;
  View states[2];  // Empty where the rule keeps less.
  UpdateExtras extras;
};
template <typename Visit>
void ForEachAddress(UpdateOperands& o, const Visit& visit) {
  visit(o.rules), visit(o.factors), visit(o.coefficient), visit(o.g), visit(o.p);
  visit(o.states[0]), visit(o.states[1]), visit(o.extras.copy), visit(o.extras.average);
}

// Checks them: `states` are their names, as many as the rule keeps.
void CheckUpdate(const Arguments& args, const UpdateOperands& operands,
                 std::initializer_list<const char*> states);

// The operation of that name: `flops` of the rule for an element, and what is read and written.
Operation UpdateOperation(const char* op, const UpdateOperands& operands, double flops);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_UPDATE_H_
