// The ops that update a flat shard: AdamW(), AdamWCoded(), Sgd(), Momentum() and MomentumCoded().
// They share dtypes, rounding of results, and extra outputs that are written in the same pass.
//   p        [n], fp32 or bf16: the master weights, a flat shard.
//   states   [n], all fp32 or all bf16: the values that the rule keeps of an element.
//   g        [n], fp32, bf16 or fp16, converted exactly.
// Arithmetic is fp32. A result kept in bf16 is rounded stochastically: a finite value goes to one
// of its two neighbours, by its distance from them, and stays finite. The next step and all other
// outputs use the rounded value. A draw is keyed by (seed, number of the update, p or which state,
// tensor, element in that tensor); any three are independent, and all of p, or of one state
// (cpu/stochastic_rounding.h). The rules (element_rules.h) say tensor and element. `factors`
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
#include <limits>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

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

// Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm
// 2), in the order of torch.optim.AdamW. For each element, where c = coefficient[0] and `factors`
// has lr and t:
//   p -= s lr wd p                          wd and s: weight_decay and lr_scale of its rule
//   m += (1 - beta1) (c g - m)
//   v  = beta2 v + (1 - beta2) (c g)^2
//   p -= s lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// The top describes g, p, the states m and v, skipping, padding and threads. coefficient: [1],
// fp32, read on the device: the product of clipping and of the correction of the mean
// (ClipCoefficient, reductions.h).

// The kernel flushes subnormal numbers, so a smaller eps would be 0.
inline constexpr double kMinAdamWEps = std::numeric_limits<float>::min();

struct AdamWOptions {
  double beta1 = 0.9;  // In [0, 1), as beta2.
  double beta2 = 0.999;
  double eps = 1e-8;  // At least kMinAdamWEps: it keeps padding at 0 / eps.
};

// rules: a table of WriteRules(). factors: the result of DeriveUpdateFactors() with the same betas.
// The factors of an element are computed in float64 and rounded once. 16 FLOPs per element; with
// all operands in fp32 and without extras, 28 bytes per element.
void AdamW(Stream& stream, const AdamWOptions& options, ConstView rules, ConstView factors,
           ConstView coefficient, ConstView g, View p, View m, View v,
           const UpdateExtras& extras = {});

// AdamW() with moments in one byte an element (state_codes.h): decoded, updated in fp32, used for p
// as they are then, and encoded again. m is signed, v unsigned. n is a multiple of kCodeBlock, and
// elements share an absmax by blocks from the first on. A rule begins at a multiple of kCodeBlock,
// and so does the index of its `element`; elements between its end and the next block are padding.
// A skipped step keeps codes and absmax. 26 FLOPs per element; with p and g in fp32 and without
// extras, 16 1/16 bytes per element.

struct CodedMoment {
  View codes;   // [n], uint8.
  View absmax;  // [n / kCodeBlock], fp32.
};

void AdamWCoded(Stream& stream, const AdamWOptions& options, ConstView rules, ConstView factors,
                ConstView coefficient, ConstView g, View p, const CodedMoment& m,
                const CodedMoment& v, const UpdateExtras& extras = {});

// Stochastic gradient descent with momentum, in the order of torch.optim.SGD (dampening 0, no
// Nesterov). Weight decay is coupled: it is part of the gradient. With c = coefficient[0]:
//   d  = c g + wd p                         wd and s: weight_decay and lr_scale of its rule
//   b  = momentum b + d;  p -= s lr b       momentum > 0: a buffer that starts at 0 is torch's
//   p -= s lr d                             momentum = 0
// The top describes g, p, the state b, skipping, padding and threads. b is View() when momentum is
// 0. coefficient: [1], fp32, read on the device.

struct SgdOptions {
  double momentum = 0;  // In [0, 1).
};

// rules: a table of WriteRules(). factors: from DeriveUpdateFactors(); only lr counts. With all
// operands in fp32 and without extras: 7 FLOPs and 20 bytes per element, or 5 and 12 without
// momentum.
void Sgd(Stream& stream, const SgdOptions& options, ConstView rules, ConstView factors,
         ConstView coefficient, ConstView g, View p, View b, const UpdateExtras& extras = {});

// Momentum of gradients, and the update that Muon orthogonalises, in the order of
// torch.optim.Muon. With c = coefficient[0]:
//   m += (1 - momentum) (c g - m)
//   u  = m + (1 - momentum) (c g - m)        with Nesterov's momentum; u = m without
// The top describes g, the state m, skipping, padding and threads; u: [n], fp32, has p's place
// there, and is computed from m before m is rounded. A skipped step leaves u as it is.

struct MomentumOptions {
  double momentum = 0.95;  // In [0, 1).
  bool nesterov = true;
};

// rules, factors: as Sgd() takes them; of the rules only tensor and element count. 6 FLOPs per
// element; with all operands in fp32, 20 bytes.
void Momentum(Stream& stream, const MomentumOptions& options, uint64_t seed, ConstView rules,
              ConstView factors, ConstView coefficient, ConstView g, View m, View u);
// The same with m in one byte an element, as AdamWCoded() has it; u is computed from m before it is
// encoded. 11 FLOPs per element.
void MomentumCoded(Stream& stream, const MomentumOptions& options, ConstView rules,
                   ConstView factors, ConstView coefficient, ConstView g, const CodedMoment& m,
                   View u);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_UPDATE_H_
