#include "trainer/optim/adafactor.h"

#include <algorithm>
#include <utility>

#include "trainer/comm/communicator.h"
#include "trainer/core/check.h"
#include "trainer/fsdp/executor.h"
#include "trainer/nn/model.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/update.h"

namespace fsdp {
namespace {

FactorLayout LayoutOf(const OptimizerOptions& options, const Executor& executor,
                      const Model& model) {
  return {model, executor.layout(), [&options](const std::string& name) {
            const ParameterGroup* const group = GroupOf(options.groups, name);
            return group == nullptr ? 1.0 : group->lr_scale;
          }};
}

}  // namespace

View Adafactor::NewBuffer(Executor& executor, int64_t elements, bool on_host) const {
  const MemoryPlace place = on_host ? MemoryPlace::kPinned : MemoryPlace::kDevice;
  return executor.NewBuffer(elements, DType::kFloat32, {MemoryKind::kActivations, place},
                            on_host_ ? Phase::kPersistent : Phase::kUpdate);
}

// The host's moments are a copy of the state.
Adafactor::Sums Adafactor::NewSums(Executor& executor, bool on_host) const {
  const auto buffer = [&](int64_t elements) { return NewBuffer(executor, elements, on_host); };
  const int64_t values = factors_.values(), tensors = std::ssize(tensors_);
  const View first = buffer(factors_.FirstSum());
  return {first,
          {.sums = first.Slice(0, values),
           .weights = first.Slice(values, tensors),
           .updates = buffer(factors_.SecondSum()),
           .moments = on_host ? buffer(values)
                              : executor.NewBuffer(values, DType::kFloat32, MemoryKind::kOptimizer),
           .fresh = buffer(1)}};
}

Adafactor::Adafactor(const OptimizerOptions& options, Executor& executor, const Model& model)
    : options_(options),
      constants_{.beta2_decay = options.adafactor.beta2_decay,
                 .eps1 = options.adafactor.eps[0],
                 .eps2 = options.adafactor.eps[1],
                 .d = options.adafactor.d},
      layout_(executor.layout()),
      factors_(LayoutOf(options, executor, model)),
      shard_(executor.shard_rank()),
      adds_(executor.mesh().coordinate().replicate == 0),
      on_host_(UpdatesOnHost(executor)) {
  for (const FactorLayout::Tensor& tensor : factors_.tensors()) tensors_.push_back(tensor.shape);
  summed_ = NewSums(executor, /*on_host=*/false);
  at_shards_ = on_host_ ? NewSums(executor, true) : summed_;
  Fill(executor.compute(), 0, summed_.all.moments);
  int64_t workspace = 0, part = 0;
  for (int f = 0; f < std::ssize(layout_.flat_parameters); ++f) {
    const int64_t size = layout_.flat_parameters[f].shard_size;
    // One plan is for all ranks, whatever pieces they have.
    for (int shard = 0; shard < layout_.shards; ++shard) {
      const auto pieces = factors_.Pieces(layout_, f, shard, 0, size);
      workspace = std::max(workspace, FactoredWorkspaceElements(pieces));
    }
    pieces_.push_back(factors_.Pieces(layout_, f, shard_, 0, size));
    if (!layout_.flat_parameters[f].frozen) part = std::max(part, std::min(size, kPart));
  }
  workspace_ = NewBuffer(executor, workspace, on_host_);
  update_ = NewBuffer(executor, part, on_host_);
  gate_ = NewBuffer(executor, 2, /*on_host=*/false);
  shard_gate_ = on_host_ ? NewBuffer(executor, 1, true) : gate_.Slice(0, 1);
}

void Adafactor::Begin(Stream& stream, ConstView coefficient) {
  const View gate = gate_.Slice(0, 1), one = gate_.Slice(1, 1);
  Copy(stream, coefficient, gate);
  Scale(stream, 0, gate);
  Fill(stream, 1, one);
  Accumulate(stream, one, gate);
  Fill(stream, 0, summed_.first);
  Fill(stream, 0, summed_.all.updates);
  if (!on_host_) return;
  Copy(stream, gate, shard_gate_);
  Copy(stream, summed_.first, at_shards_.first);
  Copy(stream, summed_.all.updates, at_shards_.all.updates);
}

// The device adds up and folds; the result goes where shards are.
void Adafactor::Move(Stream& stream, Resource to) {
  switch (to) {
    case Resource::kFactorSums:
      return Copy(stream, at_shards_.first, summed_.first);
    case Resource::kHostSums:
      Copy(stream, summed_.first, at_shards_.first);
      Copy(stream, summed_.all.moments, at_shards_.all.moments);
      return Copy(stream, summed_.all.fresh, at_shards_.all.fresh);
    case Resource::kUpdateSquares:
      return Copy(stream, at_shards_.all.updates, summed_.all.updates);
    default:
      FSDP_CHECK(to == Resource::kHostSquares);
      return Copy(stream, summed_.all.updates, at_shards_.all.updates);
  }
}

void Adafactor::Run(Stream& stream, const MatrixAction& action, const Shared& shared,
                    const std::vector<View>& v) {
  switch (action.kind) {
    case ActionKind::kFactorSums:
      for (const ShardUpdate& shard : action.shards) {
        if (!adds_) continue;
        FactorSums(stream, pieces_[shard.flat], shard.coefficient, shard.gradient, shard.master,
                   at_shards_.all, workspace_);
      }
      return;
    case ActionKind::kMove:
      return Move(stream, action.to);
    case ActionKind::kFactorReduce:
      return action.world->AllReduce(stream, summed_.first);
    case ActionKind::kFactorFold:
      stream.Wait(std::exchange(copied_, nullptr));
      return FoldFactors(stream, tensors_, constants_, shared.factors, gate_.Slice(0, 1),
                         summed_.all);
    case ActionKind::kUpdateSquares:
      for (const ShardUpdate& shard : action.shards) {
        if (!adds_) continue;
        UpdateSquares(stream, pieces_[shard.flat], constants_, shard.coefficient, shard.gradient,
                      v[shard.flat], at_shards_.all, workspace_);
      }
      return;
    default:
      FSDP_CHECK(action.kind == ActionKind::kUpdateReduce);
      return action.world->AllReduce(stream, summed_.all.updates);
  }
}

void Adafactor::Step(Stream& stream, const ShardUpdate& update, const Shared& shared,
                     const std::vector<View>& rules, View v, View average) {
  const std::vector<ShardPart> parts =
      Parts(update.flat, layout_.flat_parameters[update.flat].shard_size, kPart);
  for (size_t i = 0; i < parts.size(); ++i) {
    const int flat = parts[i].flat;
    const int64_t begin = parts[i].begin, count = parts[i].count;
    const auto part = [&](const auto& shard) {
      return shard.data != nullptr && shard.NumElements() > 0 ? shard.Slice(begin, count) : shard;
    };
    const std::vector<FactoredPiece> pieces = factors_.Pieces(layout_, flat, shard_, begin, count);
    int64_t covered = 0;
    for (const FactoredPiece& piece : pieces) covered += piece.count;
    const View result = update_.Slice(0, count);
    if (covered < count) Fill(stream, 0, result);  // Padding does not move.
    FactoredUpdate(stream, pieces, constants_, shared.factors, update.coefficient,
                   part(update.gradient), part(v), at_shards_.all, result);
    Sgd(stream, {.momentum = 0}, rules[i], shared.factors, shard_gate_, result, part(update.master),
        View(), {shared.seed, part(update.copy), part(average), options_.ema.value_or(0)});
  }
}

std::vector<OwnState> Adafactor::state() const {
  std::vector<OwnState> states;
  const View& moments = summed_.all.moments;
  for (const FactorLayout::Tensor& tensor : factors_.tensors()) {
    const FactoredTensor& t = tensor.shape;
    if (t.values() == 0) continue;
    states.push_back({tensor.name + ".rows", tensor.parameter, moments.Slice(t.at, t.rows)});
    states.push_back({tensor.name + ".columns", tensor.parameter,
                      moments.Slice(t.at + t.rows, t.values() - t.rows)});
  }
  return states;
}

}  // namespace fsdp
