#include "trainer/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "trainer/comm/communicator.h"
#include "trainer/core/check.h"
#include "trainer/fsdp/executor.h"
#include "trainer/nn/model.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/reductions.h"
#include "trainer/ops/row_moments.h"
#include "trainer/ops/state_codes.h"
#include "trainer/ops/update.h"

namespace fsdp {
namespace {

bool HasRule(const OptimizerOptions& options, const ParameterSlice& slice) {
  const ParameterGroup* const group = GroupOf(options.groups, slice.name);
  return group != nullptr && group->rule.has_value();
}

// The weight of linear layers, whatever groups say.
bool IsLinearWeight(const ModelSegment& segment, const Parameter& p) {
  return segment.is_block && p.trainable() && !p.is_adapter() && p.shape().rank() == 2 &&
         std::ranges::all_of(p.slices(), [](const ParameterSlice& slice) {
           return slice.decay && slice.name.ends_with(".weight");
         });
}

}  // namespace

bool IsUpdatedWhole(const OptimizerOptions& options, const ModelSegment& segment,
                    const Parameter& parameter) {
  return options.kind == OptimizerKind::kMuon && IsLinearWeight(segment, parameter) &&
         !HasRule(options, parameter.slices()[0]);
}

WholeRule WholeRuleOf(const OptimizerOptions& options) {
  if (options.kind == OptimizerKind::kAdafactor) {
    return [](const ModelSegment&, const Parameter& p) { return p.shape().rank() > 1; };
  }
  if (options.kind != OptimizerKind::kMuon) return nullptr;
  return [options](const ModelSegment& segment, const Parameter& parameter) {
    return IsUpdatedWhole(options, segment, parameter);
  };
}

std::vector<GroupMistake> MuonMistakes(const OptimizerOptions& options, const Model& model) {
  std::vector<GroupMistake> mistakes;
  if (options.kind != OptimizerKind::kMuon) return mistakes;
  bool any = false;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) {
      if (!IsLinearWeight(segment, *p)) continue;
      any |= IsUpdatedWhole(options, segment, *p);
      std::string names;
      size_t ruled = 0;
      const ParameterGroup* first = nullptr;
      for (const ParameterSlice& slice : p->slices()) {
        names += " " + slice.name;
        if (!HasRule(options, slice)) continue;
        ++ruled;
        first = GroupOf(options.groups, slice.name);
      }
      if (ruled == 0 || ruled == p->slices().size()) continue;
      mistakes.push_back(
          {static_cast<int>(first - options.groups.data()),
           "one matrix holds these, so all or none can have `rule: adamw`:" + names});
    }
  }
  if (!any && mistakes.empty()) {
    mistakes.push_back({-1,
                        "no weight of a linear layer in a block is left for `muon`: train one "
                        "without `rule: adamw`, or set optimizer.name to adamw"});
  }
  return mistakes;
}

double AdjustedLr(AdjustLr how, int64_t outputs, int64_t inputs) {
  const auto out = static_cast<double>(outputs), in = static_cast<double>(inputs);
  return how == AdjustLr::kOriginal ? std::sqrt(std::max(1.0, out / in))
                                    : 0.2 * std::sqrt(std::max(out, in));
}

Muon::Muon(const OptimizerOptions& options, Executor& executor, const Model& model)
    : options_(options),
      layout_(model, executor.layout(), executor.mesh().world_size()),
      rank_(executor.mesh().position()),
      shard_(executor.shard_rank()),
      rows_are_outputs_(model.linear_layout() == WeightLayout::kOutIn),
      alone_(executor.mesh().world_size() == 1),
      on_host_(UpdatesOnHost(executor)),
      unit_of_flat_(executor.layout().flat_parameters.size()),
      slots_(executor.layout().units.size()) {
  const Layout& flats = executor.layout();
  const auto persistent = [&](int64_t elements, DType dtype, bool host = false) {
    return executor.NewBuffer(
        elements, dtype,
        {MemoryKind::kActivations, host ? MemoryPlace::kPinned : MemoryPlace::kDevice});
  };
  const auto buffer = [&](int64_t elements, DType dtype) {
    return executor.NewBuffer(elements, dtype, MemoryKind::kActivations, Phase::kUpdate);
  };
  const auto slot_buffer = [&](int64_t elements, DType dtype) {
    return on_host_ ? persistent(elements, dtype) : buffer(elements, dtype);
  };
  int64_t largest_shard = 0;
  for (const FlatParameter& flat : flats.flat_parameters) {
    shard_sizes_.push_back(flat.shard_size);
    if (flat.dtypes.whole) largest_shard = std::max(largest_shard, flat.shard_size);
  }
  for (int u = 0; u < std::ssize(flats.units); ++u) {
    for (const int f : flats.units[u].flat_parameters) unit_of_flat_[f] = u;
    units_.push_back({layout_.Held(u, rank_), layout_.Owned(u, rank_), layout_.ToOwners(u),
                      layout_.FromOwners(u)});
  }
  int64_t area = 0, short_side = 0;
  for (const WholeMatrix& matrix : layout_.matrices()) {
    area = std::max(area, matrix.size());
    short_side = std::max(short_side, std::min(matrix.rows, matrix.width));
  }
  const DType dtype = MatrixDType(flats, options.muon.ns_dtype);
  update_ = on_host_ ? persistent(largest_shard, DType::kFloat32, true)
                     : buffer(largest_shard, DType::kFloat32);
  for (int slot = 0; slot < MatrixSlots(!alone_, on_host_); ++slot) {
    pieces_.push_back(slot_buffer(layout_.MostHeld(), dtype));
    shard_pieces_.push_back(on_host_ ? persistent(layout_.MostHeld(), dtype, true)
                                     : pieces_.back());
    if (!alone_) owned_.push_back(slot_buffer(layout_.MostOwned(), dtype));
  }
  if (options.muon.row_beta2) {
    int64_t most = 0, owned = 0;
    for (const WholeMatrix& matrix : layout_.matrices()) {
      moments_at_.push_back(owned);
      if (matrix.owner == rank_) owned += matrix.outputs;
      most = std::max(most, matrix.outputs);
    }
    line_factors_ = buffer(most, DType::kFloat32);
    row_moments_ =
        executor.NewBuffer(layout_.MostOwnedOutputs(), DType::kFloat32, MemoryKind::kOptimizer);
    Fill(executor.compute(), 0, row_moments_);
  }
  gate_ = persistent(2, DType::kFloat32);
  shard_gate_ = on_host_ ? persistent(1, DType::kFloat32, true) : gate_.Slice(0, 1);
  int64_t products = 0;
  for (const WholeMatrix& matrix : layout_.matrices()) {
    products = std::max(products, ProductElements(std::min(matrix.rows, matrix.width)));
  }
  workspace_ = {
      .y = buffer(area, dtype),
      .spare = buffer(area, dtype),
      .square = buffer(short_side * short_side, dtype),
      .products = buffer(products, DType::kFloat32),
      .sum = buffer(1, DType::kFloat32),
      .reduction = buffer(SumOfSquaresWorkspaceBytes(executor.compute().device().kernel_type()),
                          DType::kUInt8)};
}

void Muon::Begin(Stream& stream, ConstView coefficient) {
  const View gate = gate_.Slice(0, 1), one = gate_.Slice(1, 1);
  Copy(stream, coefficient, gate);
  Scale(stream, 0, gate);
  Fill(stream, 1, one);
  Accumulate(stream, one, gate);
  if (on_host_) Copy(stream, gate, shard_gate_);
}

std::vector<SpreadPiece> Muon::InShard(int unit, int flat) const {
  std::vector<SpreadPiece> pieces;
  for (const MatrixPiece& piece : units_[unit].held) {
    const WholeMatrix& matrix = layout_.matrices()[piece.matrix];
    if (matrix.flat != flat) continue;
    pieces.push_back({.first = piece.first,
                      .count = piece.count,
                      .width = matrix.width,
                      .packed = piece.packed,
                      .begin = matrix.begin - shard_ * shard_sizes_[flat],
                      .row_pitch = matrix.pitch,
                      .column_pitch = 1});
  }
  return pieces;
}

void Muon::Run(Stream& stream, const MatrixAction& action, const Shared& shared,
               const State& state) {
  const OfUnit& unit = units_[action.unit];
  const int slot = action.slot;
  switch (action.kind) {
    case ActionKind::kMatrixPieces:
      return Pack(stream, action, shared, state);
    case ActionKind::kMatrixSend:
      return action.world->Exchange(stream, unit.to_owners, pieces_[slot], owned_[slot]);
    case ActionKind::kMatrixUpdate:
      return Compute(stream, action);
    case ActionKind::kMove:
      return action.to == Resource::kHostPieces ? Copy(stream, pieces_[slot], shard_pieces_[slot])
                                                : Copy(stream, shard_pieces_[slot], pieces_[slot]);
    default:
      FSDP_CHECK(action.kind == ActionKind::kMatrixReturn);
      return action.world->Exchange(stream, unit.from_owners, owned_[slot], pieces_[slot]);
  }
}

void Muon::Pack(Stream& stream, const MatrixAction& action, const Shared& shared,
                const State& state) {
  const MomentumOptions options{options_.muon.momentum, options_.muon.nesterov};
  slots_[action.unit] = action.slot;
  for (const ShardUpdate& shard : action.shards) {
    const int64_t count = shard.gradient.NumElements();
    const View update = update_.Slice(shard.begin, count);
    const View& rules = state.rules[shard.flat][shard.part];
    const View momentum = shard.Shard(state.momentum[shard.flat]);
    if (momentum.dtype == DType::kUInt8) {
      MomentumCoded(
          stream, options, rules, shared.factors, shard.coefficient, shard.gradient,
          {momentum, state.absmax[shard.flat].Slice(shard.begin / kCodeBlock, count / kCodeBlock)},
          update);
    } else {
      Momentum(stream, options, shared.seed, rules, shared.factors, shard.coefficient,
               shard.gradient, momentum, update);
    }
    if (shard.begin + count < shard_sizes_[shard.flat]) continue;  // More parts follow.
    PackPieces(stream, InShard(action.unit, shard.flat), update_.Slice(0, shard_sizes_[shard.flat]),
               shard_pieces_[action.slot]);
  }
}

void Muon::Compute(Stream& stream, const MatrixAction& action) {
  const View& tensor = (alone_ ? pieces_ : owned_)[action.slot];
  std::map<int, std::vector<SpreadPiece>> by_matrix;
  for (const MatrixPiece& piece : units_[action.unit].owned) {
    const WholeMatrix& matrix = layout_.matrices()[piece.matrix];
    const bool tall = matrix.tall();
    by_matrix[piece.matrix].push_back({.first = piece.first,
                                       .count = piece.count,
                                       .width = matrix.width,
                                       .packed = piece.packed,
                                       .row_pitch = tall ? 1 : matrix.width,
                                       .column_pitch = tall ? matrix.rows : 1});
  }
  for (const auto& [index, pieces] : by_matrix) {
    const WholeMatrix& matrix = layout_.matrices()[index];
    const auto [m, n] = std::minmax(matrix.rows, matrix.width);
    SpreadPieces(stream, pieces, 1, tensor, workspace_.y.Slice(0, matrix.size()));
    const ScaledMatrix result = NewtonSchulz(stream,
                                             {.steps = static_cast<int>(options_.muon.ns_steps),
                                              .coefficients = options_.muon.ns_coefficients},
                                             m, n, workspace_);
    if (options_.muon.row_beta2) {
      const bool outputs_are_rows = rows_are_outputs_ != matrix.tall();
      NormalizeRows(stream, {.beta2 = *options_.muon.row_beta2, .columns = !outputs_are_rows},
                    result.scale, gate_.Slice(0, 1), result.y,
                    row_moments_.Slice(moments_at_[index], matrix.outputs),
                    line_factors_.Slice(0, matrix.outputs));
    } else {
      Scale(stream, result.scale, result.y);
    }
    PackPieces(stream, pieces, result.y, tensor);
  }
}

std::vector<RowMoments> Muon::RowMomentsOf() const {
  std::vector<RowMoments> moments;
  if (!options_.muon.row_beta2) return moments;
  const std::vector<WholeMatrix>& matrices = layout_.matrices();
  for (size_t i = 0; i < matrices.size(); ++i) {
    const WholeMatrix& matrix = matrices[i];
    const bool single = matrix.width == matrix.pitch;
    moments.push_back({.name = matrix.name + (single ? "" : ":" + std::to_string(matrix.part)),
                       .parameter = matrix.parameter,
                       .owner = matrix.owner,
                       .outputs = matrix.outputs});
    if (matrix.owner == rank_) moments.back().begin = moments_at_[i];
  }
  return moments;
}

void Muon::Step(Stream& stream, const ShardUpdate& update, const Shared& shared, ConstView rules,
                View average) {
  const int unit = unit_of_flat_[update.flat];
  if (update.begin == 0) {  // Parts follow one another.
    const View result = update_.Slice(0, shard_sizes_[update.flat]);
    Fill(stream, 0, result);  // Padding does not move.
    SpreadPieces(stream, InShard(unit, update.flat), 1, shard_pieces_[slots_[unit]], result);
  }
  Sgd(stream, {.momentum = 0}, rules, shared.factors, shard_gate_,
      update_.Slice(update.begin, update.master.NumElements()), update.master, View(),
      {shared.seed, update.copy, update.Shard(average), options_.ema.value_or(0)});
}

}  // namespace fsdp
