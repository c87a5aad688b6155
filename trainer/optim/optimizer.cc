#include "trainer/optim/optimizer.h"

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

#include "trainer/fsdp/executor.h"
#include "trainer/nn/model.h"
#include "trainer/ops/element_rules.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/row_adagrad.h"
#include "trainer/ops/state_codes.h"
#include "trainer/ops/step_parameters.h"

namespace fsdp {
namespace {

// For Sgd(), whose decay is part of what the learning rate multiplies: s r (O + d W / r).
void ScaleUpdate(const MuonOptions& options, const Model& model, const ParameterSlice& slice,
                 ElementRule& rule) {
  int64_t outputs = slice.rows, inputs = slice.shape[1] / slice.side_by_side;
  if (model.linear_layout() == WeightLayout::kInOut) std::swap(outputs, inputs);
  const double adjusted = AdjustedLr(options.adjust_lr, outputs, inputs);
  rule.lr_scale *= adjusted;
  rule.weight_decay /= adjusted;
}

// The rules for the elements of this rank's shard, by flat parameter. Every rank has the same
// number of rules, since one plan is for all; rules of slices on other ranks cover no element.
std::vector<std::vector<ElementRule>> RulesOf(const OptimizerOptions& options,
                                              const Executor& executor, const Model& model) {
  std::unordered_map<std::string, const Parameter*> parameters;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) parameters[p->name()] = p;
  }
  std::vector<std::vector<ElementRule>> rules;
  for (const FlatParameter& flat : executor.layout().flat_parameters) {
    rules.emplace_back();
    size_t slices = 0;
    for (const Placement& p : flat.parameters) slices += parameters.at(p.name)->slices().size();
    for (const Piece& piece : PiecesOfShard(flat, executor.shard_rank())) {
      const Parameter& parameter = *parameters.at(piece.parameter->name);
      for (const SlicePiece& part : SlicePieces(parameter, piece.begin, piece.count)) {
        const int64_t begin = piece.at + part.at;
        ElementRule rule{begin, begin + part.count, part.slice->decay ? options.weight_decay : 0};
        rule.tensor = TensorKey(part.slice->name);
        rule.element = part.begin;
        if (const ParameterGroup* group = GroupOf(options.groups, part.slice->name)) {
          rule.weight_decay = group->weight_decay.value_or(rule.weight_decay);
          rule.lr_scale = group->lr_scale;
        }
        if (flat.dtypes.whole && options.kind == OptimizerKind::kMuon)
          ScaleUpdate(options.muon, model, *part.slice, rule);
        rules.back().push_back(rule);
      }
    }
    rules.back().resize(slices, {flat.shard_size, flat.shard_size});
  }
  return rules;
}

// The rules for the elements of a part, counted from its first element; the same number of rules.
std::vector<ElementRule> RulesOfPart(std::vector<ElementRule> rules, const ShardPart& part) {
  for (ElementRule& rule : rules) {
    const int64_t begin = std::clamp<int64_t>(rule.begin - part.begin, 0, part.count);
    rule.element += std::max<int64_t>(begin - (rule.begin - part.begin), 0);
    rule.begin = begin;
    rule.end = std::clamp<int64_t>(rule.end - part.begin, begin, part.count);
  }
  return rules;
}

}  // namespace

Optimizer::Optimizer(const OptimizerOptions& options, Executor& executor, const Model& model)
    : options_(options),
      counted_(executor.NewBuffer(sizeof(StepState), DType::kUInt8, MemoryKind::kOptimizer)),
      factors_(executor.NewBuffer(sizeof(UpdateFactors), DType::kUInt8, MemoryKind::kOptimizer)) {
  fsdp::SetUpdates(executor.compute(), 0, counted_);
  const std::vector<std::vector<ElementRule>> rules = RulesOf(options, executor, model);
  for (size_t f = 0; f < rules.size(); ++f) {
    const int index = static_cast<int>(f);
    rules_.emplace_back();
    on_host_.push_back(false);
    if (executor.layout().flat_parameters[f].frozen || rules[f].empty()) {
      rules_[f].emplace_back(nullptr, DType::kUInt8, Shape{0});
      continue;
    }
    const MemoryPlace place = executor.PlaceOf(index);
    on_host_.back() = place != MemoryPlace::kDevice;
    const std::vector<ShardPart> parts =
        options.kind == OptimizerKind::kAdafactor
            ? Parts(index, executor.layout().flat_parameters[f].shard_size, Adafactor::kPart)
            : executor.spilled().PartsOf(index);
    for (const ShardPart& part : parts) {
      rules_[f].push_back(executor.NewBuffer(RuleTableShape(rules[f].size()).NumElements(),
                                             DType::kUInt8, {MemoryKind::kOptimizer, place}));
      WriteRules(executor.StreamFor(index), RulesOfPart(rules[f], part), part.count,
                 rules_[f].back());
    }
  }
  if (std::ranges::any_of(on_host_, std::identity())) {
    host_factors_ = executor.NewBuffer(sizeof(UpdateFactors), DType::kUInt8,
                                       {MemoryKind::kOptimizer, MemoryPlace::kPinned});
  }
  const std::vector<KeptState> kept = KeptStates(options, executor.layout());
  std::vector<Executor::FormOf> forms;
  for (const KeptState& state : kept) {
    forms.emplace_back([&state](const FlatParameter& flat) {
      return ShardForm{state.In(flat.dtypes), state.ElementsPerValue(flat)};
    });
  }
  const std::vector<std::vector<View>> shards = executor.NewShards(MemoryKind::kOptimizer, forms);
  for (size_t i = 0; i < kept.size(); ++i) {
    const std::optional<size_t> of =
        kept[i].absmax_of > 0 ? std::optional(i - kept[i].absmax_of) : std::nullopt;
    state_.push_back({std::string(kept[i].name), shards[i], of});
  }
  for (const FlatParameter& flat : executor.layout().flat_parameters) {
    whole_.push_back(flat.dtypes.whole);
  }
  if (options.kind == OptimizerKind::kAdafactor) {
    adafactor_.emplace(options, executor, model);
  } else if (std::ranges::any_of(whole_, std::identity())) {
    muon_.emplace(options, executor, model);
  }
}

void Optimizer::SetUpdates(Stream& stream, int64_t updates) {
  fsdp::SetUpdates(stream, updates, counted_);
}

void Optimizer::Begin(Stream& stream, ConstView inputs, ConstView coefficient) {
  DeriveUpdateFactors(stream, options_.beta1, options_.beta2, inputs, coefficient, counted_,
                      factors_);
  if (host_factors_.data != nullptr) Copy(stream, factors_, host_factors_);
  if (muon_) muon_->Begin(stream, coefficient);
  if (adafactor_) adafactor_->Begin(stream, coefficient);
}

void Optimizer::RunMatrices(Stream& stream, const MatrixAction& action) {
  const bool on_host = !action.shards.empty() && on_host_[action.shards[0].flat];
  const View& factors = on_host ? host_factors_ : factors_;
  if (adafactor_) return adafactor_->Run(stream, action, {factors, seed_}, state_[0].shards);
  static const std::vector<View> kNone;
  const auto absmax = std::ranges::find(state_, std::string("m_absmax"), &ShardState::name);
  muon_->Run(stream, action, {factors, seed_},
             {rules_, state_[0].shards, absmax == state_.end() ? kNone : absmax->shards});
}

std::vector<OwnState> Optimizer::own() const {
  return adafactor_ ? adafactor_->state() : std::vector<OwnState>();
}

void Optimizer::Hold(const EventPtr& copied) {
  if (adafactor_) adafactor_->Hold(copied);
}

void Optimizer::Step(Stream& stream, const ShardUpdate& update) {
  const View average = options_.ema ? state_.back().shards[update.flat] : View();
  const View& factors = on_host_[update.flat] ? host_factors_ : factors_;
  if (adafactor_) {
    return adafactor_->Step(stream, update, {factors, seed_}, rules_[update.flat],
                            state_[0].shards[update.flat], average);
  }
  if (whole_[update.flat]) {
    return muon_->Step(stream, update, {factors, seed_}, rules_[update.flat][update.part], average);
  }
  ShardOperands operands{rules_[update.flat][update.part],
                         factors,
                         update.coefficient,
                         update.gradient,
                         update.master,
                         {},
                         update.copy};
  const int64_t count = update.master.NumElements();
  for (const ShardState& state : state_) {
    const View& shard = state.shards[update.flat];
    if (!state.absmax_of) {
      operands.kept.push_back(update.Shard(shard));
    } else if (shard.NumElements() > 0) {
      operands.kept.push_back(shard.Slice(update.begin / kCodeBlock, count / kCodeBlock));
    }
  }
  UpdateShard(stream, options_, seed_, operands);
}

void Optimizer::StepRows(Stream& stream, const RowUpdate& update) const {
  RowAdagrad(stream,
             {.lr_scale = options_.table_lr_scale,
              .seed = seed_,
              .rank = update.position,
              .world = update.world},
             {.ids = update.ids,
              .gradients = update.gradients,
              .factors = factors_,
              .coefficient = update.coefficient,
              .mean_scale = update.mean_scale,
              .loss_scale = update.loss_scale,
              .table = update.table,
              .sums = update.sums});
}

}  // namespace fsdp
