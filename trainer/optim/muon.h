// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) as torch.optim.Muon has it, for the
// matrices of a model (fsdp/matrix_layout.h). With G = coefficient times the gradient:
//   M <- M + (1 - momentum) (G - M)
//   U  = M + (1 - momentum) (G - M)            Nesterov; U = M without
//   O  = the iteration of Newton and Schulz for U (ops/newton_schulz.h), in ns_dtype
//   O <- its outputs divided by the roots of their second moments, with row_beta2
//        (ops/row_moments.h)
//   W <- W - s lr (weight_decay W + r O)       r: AdjustLr; s: the group's lr_scale
// M, the state "m", lies in shards, as the masters do, in codes of 8 bits where the run's state
// does. A rank updates its elements of M and packs U for the owners of matrices, in ns_dtype. An
// owner computes O of its matrices; all ranks that hold elements of a matrix get those of O. Where
// the host updates shards, U and O pass through the device, momentum and masters do not. An update
// therefore depends neither on the number of ranks, nor on how shards cut a matrix, nor on
// who owns it. The second moments of outputs, the state "row_v", are with the matrix's owner alone:
// nobody else needs them, and they are too few to shard. A checkpoint has them as tensors of their
// own, by matrix, which the owners write and, at another number of ranks, other owners read.
#ifndef FSDP_TRAIN_TRAINER_OPTIM_MUON_H_
#define FSDP_TRAIN_TRAINER_OPTIM_MUON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/fsdp/executor_callbacks.h"
#include "trainer/fsdp/executor_options.h"
#include "trainer/fsdp/matrix_layout.h"
#include "trainer/ops/matrix_pieces.h"
#include "trainer/ops/newton_schulz.h"
#include "trainer/optim/update_rule.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

class Executor;
class Model;
class Parameter;
struct ModelSegment;

// Whether Muon updates the parameter: the weight of linear layers in a block, no adapter's, without
// a group whose rule is AdamW. All slices of a parameter are, or none.
bool IsUpdatedWhole(const OptimizerOptions& options, const ModelSegment& segment,
                    const Parameter& parameter);
// For ExecutorOptions::whole: the same, or with Adafactor all that has more than one dimension;
// null with others.
WholeRule WholeRuleOf(const OptimizerOptions& options);
// Empty where the options are not Muon's. Mistakes: a parameter with slices of a group of another
// rule and others; nothing left that is updated whole.
std::vector<GroupMistake> MuonMistakes(const OptimizerOptions& options, const Model& model);
// The factor r of a matrix.
double AdjustedLr(AdjustLr how, int64_t outputs, int64_t inputs);

// The second moments of a matrix's outputs, in the memory of Muon::row_moments().
struct RowMoments {
  std::string name, parameter;  // "<name>", or "<name>:<part>" of a slice with several.
  int owner = 0;                // A rank's position in the mesh.
  int64_t outputs = 0;
  std::optional<int64_t> begin = {};  // With its owner alone.
};

class Muon {
 public:
  // Takes its buffers from the executor: a shard's update in fp32 where shards are updated; on the
  // device the packed tensors in ns_dtype, in MatrixSlots(), and the workspace of the largest
  // matrix. The host has packed tensors of its own where it updates shards; then the workspace
  // alone is of Phase::kUpdate, for packed tensors still leave while the next step begins.
  Muon(const OptimizerOptions& options, Executor& executor, const Model& model);

  // Before all others of a step. coefficient: as Optimizer::Begin() has it.
  void Begin(Stream& stream, ConstView coefficient);
  struct Shared {
    ConstView factors;
    uint64_t seed = 0;
  };
  // By flat parameter. absmax: of momentum in codes; empty, or without elements, where it is none.
  struct State {
    const std::vector<std::vector<View>>& rules;
    const std::vector<View>& momentum;
    const std::vector<View>& absmax;
  };
  void Run(Stream& stream, const MatrixAction& action, const Shared& shared, const State& state);
  // The update of a shard of matrices whose results have arrived in the unit's slot.
  void Step(Stream& stream, const ShardUpdate& update, const Shared& shared, ConstView rules,
            View average);
  // fp32: of the matrices that the rank owns, and zeros behind them, for all ranks have as many.
  // Without elements where there is no row_beta2.
  const View& row_moments() const { return row_moments_; }
  std::vector<RowMoments> RowMomentsOf() const;  // By matrix, the same on all ranks but `begin`.

 private:
  void Pack(Stream& stream, const MatrixAction& action, const Shared& shared, const State& state);
  void Compute(Stream& stream, const MatrixAction& action);
  // The unit's pieces as they lie in this rank's shard.
  std::vector<SpreadPiece> InShard(int unit, int flat) const;

  struct OfUnit {
    std::vector<MatrixPiece> held, owned;
    ExchangeLayout to_owners, from_owners;
  };

  const OptimizerOptions options_;
  const MatrixLayout layout_;
  const int rank_, shard_;
  const bool rows_are_outputs_;
  const bool alone_;    // One rank, which owns everything: nothing travels between ranks.
  const bool on_host_;  // Shards are updated there.
  std::vector<int64_t> shard_sizes_;
  std::vector<int> unit_of_flat_;
  std::vector<OfUnit> units_;
  std::vector<int> slots_;            // By unit: of the pieces that have come last.
  View update_;                       // [the largest shard], fp32.
  std::vector<View> pieces_, owned_;  // By slot.
  std::vector<View> shard_pieces_;    // pieces_, or in host memory.
  View row_moments_{nullptr, DType::kFloat32, Shape{0}};
  std::vector<int64_t> moments_at_;  // By matrix: where those that the rank owns begin.
  View line_factors_;                // [the most outputs of a matrix], fp32.
  View gate_;                        // [2], fp32: 1, or NaN in a step that is skipped; and 1.
  View shard_gate_;                  // [1]: the first, or its copy in host memory.
  NewtonSchulzWorkspace workspace_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_MUON_H_
