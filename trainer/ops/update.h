// The common part of the ops that update a flat shard (adamw.h, sgd.h): dtypes, rounding of
// results, and extra outputs that are written in the same pass.
//   p        [n], fp32 or bf16: the master weights, a flat shard.
//   states   [n], all fp32 or all bf16: the values that the rule keeps of an element.
//   g        [n], fp32, bf16 or fp16, converted exactly.
// Arithmetic is fp32. A result kept in bf16 is rounded stochastically: a finite value goes to one
// of its two neighbours, by its distance from them, and stays finite. The next step and all other
// outputs use the rounded value. A draw is keyed by (seed, number of the update, p or which state,
// tensor, element in that tensor). The rules (element_rules.h) say tensor and element. `factors`
// has the number, which counts updates that have landed, this one included, as a checkpoint does.
// So no bit depends on ranks, sharding factor, wrapping, threads or a resume, and a skipped step
// draws nothing.
//   Skipping  A coefficient that is not finite changes nothing: all outputs keep their bits, except
//             the copy, which is written from p even then, because its memory may have held another
//             shard's.
//   Padding   Elements that are exactly 0 in p, g and the states (and the average) stay exactly 0.
//   Threads   Element by element: no result depends on the number of threads, nor, from the same
//             factors, on the type of device.
#ifndef FSDP_TRAIN_TRAINER_OPS_UPDATE_H_
#define FSDP_TRAIN_TRAINER_OPS_UPDATE_H_

#include <cstdint>
#include <initializer_list>

#include "trainer/ops/arguments.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

// Outputs beside the update, from p as it is then kept. Empty views: not wanted.
struct UpdateExtras {
  uint64_t seed = 0;  // For stochastic rounding to bf16, wherever there is any.
  View copy = {};     // [n], fp32, bf16 or fp16: p, rounded to nearest, ties to even (cast.h).
  // [n], fp32: an exponential moving average, average += (1 - decay) (p - average) (Polyak and
  // Juditsky 1992; computed as in get_ema_multi_avg_fn of torch.optim.swa_utils).
  View average = {};
  double decay = 0;  // In [0, 1). 1 - decay is computed in float64 and rounded once.
};

// The operands of an update, as its kernel gets them.
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

// Checks the operands. `states`: their names, as many as the rule keeps.
void CheckUpdate(const Arguments& args, const UpdateOperands& operands,
                 std::initializer_list<const char*> states);

// The operation of that name, with the rule's FLOPs for an element, and the ranges read and
// written.
Operation UpdateOperation(const char* op, const UpdateOperands& operands, double flops);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_UPDATE_H_
