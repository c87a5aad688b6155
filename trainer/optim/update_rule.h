// The optimizers: the state that each keeps of an element, and its op. An op needs only an element
// and its gradient, which any flat shard has. Muon needs whole matrices (muon.h), Adafactor sums
// over their rows and columns (adafactor.h).
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

class Executor;

struct OptimizerOptions {
  using Kind = OptimizerKind;

  Kind kind = Kind::kAdamW;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // AdamW.
  double momentum = 0;                           // SGD.
  MuonOptions muon;                              // Muon, which has AdamW's options for the rest.
  AdafactorOptions adafactor;                    // Adafactor.
  std::optional<double> ema;                     // Decay of the averaged masters; none without.
  double weight_decay = 0.1;                     // On slices with ParameterSlice::decay.
  std::vector<ParameterGroup> groups;
  double table_lr_scale = 1;  // For rows of embedding tables (ops/row_adagrad.h): times lr.
  uint64_t seed = 0;          // For stochastic rounding to bf16 (ops/update.h).
};

// A state with one value for each element of the master, or for each block of elements. It is laid
// out as the master's shards are, so it is saved and resharded as they are.
struct KeptState {
  std::string_view name;           // As in checkpoints.
  DType DTypes::*dtype = nullptr;  // The flat parameter's; null: fp32.
  bool of_whole = true;            // Kept for flat parameters with DTypes::whole, too.
  // fp32 a block, for flat parameters with codes alone: the absmax of the state before by so many.
  int absmax_of = 0;

  // A shard's dtype, and elements for a value of it; 0: it has none.
  DType In(const DTypes& dtypes) const { return dtype ? dtypes.*dtype : DType::kFloat32; }
  int64_t ElementsPerValue(const FlatParameter& flat) const;
  int64_t ShardBytes(const FlatParameter& flat) const;
};

// The states kept beside the master: "m" and "v", or "momentum", or nothing; "m_absmax" and
// "v_absmax" where the layout has flat parameters with codes; then "ema" where masters are
// averaged. Matrices that Muon updates have no "v". Adafactor has a "v" of vectors alone.
std::vector<KeptState> KeptStates(const OptimizerOptions& options, const Layout& layout);

// Whether the host updates flat parameters that train.
bool UpdatesOnHost(const Executor& executor);

struct ShardOperands {
  ConstView rules;    // A table of WriteRules().
  ConstView factors;  // From DeriveUpdateFactors(), with the same betas.
  ConstView coefficient, gradient;
  View master;
  // In the order of KeptStates(), those of this shard. Not of what Muon updates whole, nor of
  // Adafactor.
  std::vector<View> kept;
  View copy = {};  // The master in another dtype; empty: none is wanted.
};

// Enqueues an update: one pass, which writes the copy, too. `seed` replaces the options'.
// ops/update.h says how results are rounded, and which steps are skipped.
void UpdateShard(Stream& stream, const OptimizerOptions& options, uint64_t seed,
                 const ShardOperands& operands);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_UPDATE_RULE_H_
