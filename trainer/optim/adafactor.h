// Adafactor (Shazeer and Stern 2018, arXiv:1804.04235) as torch.optim.Adafactor has it; the
// formulas are in ops/factored.h. Tensors are those of the Hugging Face files
// (fsdp/factor_layout.h).
// Moments of rows and columns, the states "factor", are small: every rank has all of them. Ranks
// add up their shards' sums of squares, one call for all units, and fold the same sums, so moments
// are the same bits on all ranks. Vectors keep a moment of each element, the state "v", in shards.
#ifndef FSDP_TRAIN_TRAINER_OPTIM_ADAFACTOR_H_
#define FSDP_TRAIN_TRAINER_OPTIM_ADAFACTOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/fsdp/executor_callbacks.h"
#include "trainer/fsdp/factor_layout.h"
#include "trainer/ops/factored.h"
#include "trainer/optim/update_rule.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

class Executor;
class Model;

// A tensor that the optimizer keeps beside the shards, the same on all ranks.
struct OwnState {
  std::string name, parameter;  // parameter: as in the layout.
  View value;
};

class Adafactor {
 public:
  // Elements that are updated at a time, with fp32 memory for as many.
  static constexpr int64_t kPart = int64_t{1} << 20;

  // Takes memory from the executor: moments, zeros, and two sums on the device; where shards are
  // updated a workspace and a part's updates, and on the host copies of the former. All is
  // persistent with updates on the host, of which the next step's forward need not wait; otherwise
  // the moments alone.
  Adafactor(const OptimizerOptions& options, Executor& executor, const Model& model);

  struct Shared {
    ConstView factors;
    uint64_t seed = 0;
  };
  // Before all others of a step. coefficient: as Optimizer::Begin() has it.
  void Begin(Stream& stream, ConstView coefficient);
  // v: by flat parameter, [0] for matrices.
  void Run(Stream& stream, const MatrixAction& action, const Shared& shared,
           const std::vector<View>& v);
  // rules: a table for each part of the shard, as Parts() makes them.
  void Step(Stream& stream, const ShardUpdate& update, const Shared& shared,
            const std::vector<View>& rules, View v, View average);

  // "<tensor>.rows" and "<tensor>.columns" of each matrix.
  std::vector<OwnState> state() const;
  // The next change of moments waits for `copied`.
  void Hold(EventPtr copied) { copied_ = std::move(copied); }

 private:
  const OptimizerOptions options_;
  const FactoredOptions constants_;
  const Layout layout_;
  const FactorLayout factors_;
  const int shard_;
  const bool adds_;  // Replicas hold the same gradients, which count once.
  std::vector<FactoredTensor> tensors_;
  std::vector<std::vector<FactoredPiece>> pieces_;  // By flat parameter.
  // `first`: FactoredSums::sums, then weights.
  struct Sums {
    View first;
    FactoredSums all;
  };
  View NewBuffer(Executor& executor, int64_t elements, bool on_host) const;
  Sums NewSums(Executor& executor, bool on_host) const;
  void Move(Stream& stream, Resource to);

  const bool on_host_;       // Shards are updated there.
  Sums summed_, at_shards_;  // On the device, and where shards are.
  View update_, workspace_;
  View gate_;        // [2], fp32: 1, or NaN in a step that is skipped; and 1.
  View shard_gate_;  // [1]: the first, or its copy in host memory.
  EventPtr copied_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_ADAFACTOR_H_
