#include "trainer/optim/optimizer.h"

#include <string>
#include <unordered_map>

#include "trainer/ops/adamw.h"
#include "trainer/ops/sgd.h"

namespace fsdp {
namespace {

// By flat parameter: the rules for the elements of this rank's shard.
std::vector<std::vector<ElementRule>> RulesOf(const OptimizerOptions& options,
                                              const Executor& executor, const Model& model) {
  std::unordered_map<std::string, const Parameter*> parameters;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) parameters[p->name()] = p;
  }
  std::vector<std::vector<ElementRule>> rules;
  for (const FlatParameter& flat : executor.layout().flat_parameters) {
    rules.emplace_back();
    for (const Piece& piece : PiecesOfShard(flat, executor.shard_rank())) {
      const Parameter& parameter = *parameters.at(piece.parameter->name);
      for (const SlicePiece& part : SlicePieces(parameter, piece.begin, piece.count)) {
        const int64_t begin = piece.at + part.at;
        ElementRule rule{begin, begin + part.count, part.slice->decay ? options.weight_decay : 0};
        if (const ParameterGroup* group = GroupOf(options.groups, part.slice->name)) {
          rule.weight_decay = group->weight_decay.value_or(rule.weight_decay);
          rule.lr_scale = group->lr_scale;
        }
        rules.back().push_back(rule);
      }
    }
  }
  return rules;
}

class AdamWOptimizer final : public Optimizer {
 public:
  AdamWOptimizer(const OptimizerOptions& options, Executor& executor, const Model& model)
      : options_(options), rules_(RulesOf(options, executor, model)) {
    for (const char* name : {"m", "v"}) {
      state_.push_back({name, executor.NewShards(MemoryKind::kOptimizer, &DTypes::state)});
    }
  }
  void Step(Stream& stream, int flat, double lr, int64_t step, View master, ConstView gradient,
            ConstView coefficient) override {
    const AdamWOptions options{lr, options_.beta1, options_.beta2, options_.eps, step};
    AdamW(stream, options, rules_[flat], coefficient, gradient, master, state_[0].shards[flat],
          state_[1].shards[flat]);
  }
  const std::vector<ShardState>& state() const override { return state_; }

 private:
  OptimizerOptions options_;
  std::vector<std::vector<ElementRule>> rules_;
  std::vector<ShardState> state_;
};

class SgdOptimizer final : public Optimizer {
 public:
  SgdOptimizer(const OptimizerOptions& options, Executor& executor, const Model& model)
      : options_(options), rules_(RulesOf(options, executor, model)) {
    if (options.momentum > 0) {
      state_.push_back({"momentum", executor.NewShards(MemoryKind::kOptimizer, &DTypes::state)});
    }
  }
  void Step(Stream& stream, int flat, double lr, int64_t, View master, ConstView gradient,
            ConstView coefficient) override {
    SgdOptions options;
    options.lr = lr;
    options.momentum = options_.momentum;
    Sgd(stream, options, rules_[flat], coefficient, gradient, master,
        state_.empty() ? View() : state_[0].shards[flat]);
  }
  const std::vector<ShardState>& state() const override { return state_; }

 private:
  OptimizerOptions options_;
  std::vector<std::vector<ElementRule>> rules_;
  std::vector<ShardState> state_;
};

}  // namespace

std::unique_ptr<Optimizer> CreateOptimizer(const OptimizerOptions& options, Executor& executor,
                                           const Model& model) {
  if (options.kind == OptimizerOptions::Kind::kSgd) {
    return std::make_unique<SgdOptimizer>(options, executor, model);
  }
  return std::make_unique<AdamWOptimizer>(options, executor, model);
}

}  // namespace fsdp
