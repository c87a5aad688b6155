// Which optimizers there are: what each keeps of an element that it updates, and its op. They need
// an element and its gradient, which any flat shard has; none needs a row or a matrix.
// Tests: tests/trainer/optim/optimizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPTIM_UPDATE_RULE_H_
#define FSDP_TRAIN_TRAINER_OPTIM_UPDATE_RULE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/fsdp/layout.h"
#include "trainer/optim/kind.h"
#include "trainer/optim/parameter_groups.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

struct OptimizerOptions {
  using Kind = OptimizerKind;

  Kind kind = Kind::kAdamW;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // AdamW.
  double momentum = 0;                           // SGD.
  std::optional<double> ema;                     // Decay of the averaged masters; none without.
  double weight_decay = 0.1;  // On the slices that take part in it (ParameterSlice::decay).
  std::vector<ParameterGroup> groups;
  double table_lr_scale = 1;  // Of rows of embedding tables (ops/row_adagrad.h): times lr.
  uint64_t seed = 0;          // Of the rounding of what is kept in bf16 (ops/update.h).
};

// A value an element of the master, laid out as its shards are, so it is saved and resharded as
// they are.
struct KeptState {
  std::string_view name;           // As in checkpoints.
  DType DTypes::*dtype = nullptr;  // Of a flat parameter; null: fp32.

  DType In(const DTypes& dtypes) const { return dtype ? dtypes.*dtype : DType::kFloat32; }
};

// What is kept beside the master: "m" and "v", or "momentum" or nothing; then "ema" where masters
// are averaged.
std::vector<KeptState> KeptStates(const OptimizerOptions& options);

struct ShardOperands {
  ConstView rules;    // A table of WriteRules().
  ConstView factors;  // Of DeriveUpdateFactors(), of the same betas.
  ConstView coefficient, gradient;
  View master;
  std::vector<View> kept;  // As KeptStates() has them.
  View copy = {};          // Of the master, in another dtype; empty: none is wanted.
};

// Enqueues an update: one pass, which writes the copy, too. `seed`: in place of the options'. What
// is rounded, skipped and drawn: ops/update.h.
void UpdateShard(Stream& stream, const OptimizerOptions& options, uint64_t seed,
                 const ShardOperands& operands);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_UPDATE_RULE_H_
