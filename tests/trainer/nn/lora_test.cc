// Adapters against the model they are merged into: that one is held to PyTorch, so these are too.
#include "trainer/nn/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "tests/testing/tiny_run.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/nn/initial_values.h"

namespace fsdp {
namespace {

using testing::Tensors;
using testing::TinyResult;
using testing::TinyRun;
using testing::Train;

constexpr float kRank = 3, kAlpha = 6;
const std::vector<std::string> kTargets = {"*attn*", "*.h.1.mlp.c_fc*"};

TinyRun Adapted() {
  TinyRun run;
  run.lora = LoraOptions{static_cast<int64_t>(kRank), kAlpha, kTargets};
  run.options.optimizer.kind = OptimizerOptions::Kind::kAdamW;
  run.steps = 4;
  return run;
}

// W + alpha / rank (B A)^T for GPT-2's [in, out], of all weights that have adapters.
Tensors Merge(const Tensors& parameters) {
  Tensors merged;
  for (const auto& [name, values] : parameters) {
    if (name.find("lora_") != std::string::npos) continue;
    merged[name] = values;
    const auto a = parameters.find(LoraName(name, 'A')), b = parameters.find(LoraName(name, 'B'));
    if (a == parameters.end()) continue;
    const size_t rank = static_cast<size_t>(kRank), in = a->second.size() / rank,
                 out = b->second.size() / rank;
    for (size_t i = 0; i < in; ++i) {
      for (size_t o = 0; o < out; ++o) {
        double sum = 0;
        for (size_t r = 0; r < rank; ++r) {
          sum += double(a->second[r * in + i]) * b->second[o * rank + r];
        }
        merged[name][i * out + o] += static_cast<float>(kAlpha / kRank * sum);
      }
    }
  }
  return merged;
}

TinyRun Plain(const Tensors& parameters) {
  TinyRun run;
  run.initial = [parameters](const Parameter& p, int64_t begin, std::span<float> values) {
    const std::vector<float>& from = parameters.at(p.name());
    std::copy_n(from.begin() + begin, values.size(), values.begin());
  };
  return run;
}

void ExpectNear(const std::vector<float>& got, const std::vector<double>& want, double tolerance,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double norm = 0, difference = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    norm += want[i] * want[i];
    difference += (got[i] - want[i]) * (got[i] - want[i]);
  }
  EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << what;
  EXPECT_GT(norm, 0) << what;
}

// A generous bound of rounding: 2^-24 for each of some hundred additions in a row.
constexpr double kTolerance = 1e-5;

TEST(Lora, TrainsWhatTheMergedModelWouldCompute) {
  for (const int world : {1, 3}) {
    TinyRun run = Adapted();
    run.world = world;
    run.logits = {{0, 3}, {2, 7}};
    run.steps = 1;
    run.options.executor.max_norm = 0;
    const TinyResult adapted = Train(run);
    // The merged model before the step has the same loss, and gradients that the chain rule turns
    // into those of A and B.
    TinyRun plain = Plain(Merge(adapted.initial));
    plain.logits = run.logits;
    plain.steps = 1;
    const TinyResult merged = Train(plain);
    EXPECT_NEAR(adapted.losses[0], merged.losses[0], kTolerance);
    ExpectNear(adapted.logits, {merged.logits.begin(), merged.logits.end()}, kTolerance, "logits");
    size_t adapters = 0;
    for (const auto& [name, dw] : merged.gradients) {
      const std::string a_name = LoraName(name, 'A'), b_name = LoraName(name, 'B');
      if (!adapted.gradients.count(a_name)) continue;
      ++adapters;
      const std::vector<float>&a = adapted.initial.at(a_name), &b = adapted.initial.at(b_name);
      const size_t rank = static_cast<size_t>(kRank), in = a.size() / rank, out = b.size() / rank;
      std::vector<double> da(a.size()), db(b.size());
      for (size_t i = 0; i < in; ++i) {
        for (size_t o = 0; o < out; ++o) {
          for (size_t r = 0; r < rank; ++r) {
            const double d = kAlpha / kRank * double(dw[i * out + o]);
            da[r * in + i] += d * b[o * rank + r];
            db[o * rank + r] += d * a[r * in + i];
          }
        }
      }
      ExpectNear(adapted.gradients.at(a_name), da, kTolerance, a_name);
      ExpectNear(adapted.gradients.at(b_name), db, kTolerance, b_name);
    }
    EXPECT_EQ(adapters, 7u);  // Two of attention in each of three blocks, and one more.
    EXPECT_EQ(adapted.gradients.size(), 2 * adapters);
  }
}

TEST(Lora, MergedAfterTrainingItIsTheSameModel) {
  const TinyResult adapted = Train(Adapted());
  TinyRun plain = Plain(Merge(adapted.parameters));
  plain.options.lr.lr = 0;
  EXPECT_NEAR(Train(plain).eval_loss, adapted.eval_loss, kTolerance);
  EXPECT_LT(adapted.losses.back(), adapted.losses.front());
  for (const auto& [name, values] : adapted.parameters) {
    EXPECT_EQ(values == adapted.initial.at(name), name.find("lora_") == std::string::npos) << name;
  }
}

TEST(Lora, FullParametersTrainBesideAdapters) {
  const std::vector<std::string> full = {"wte", "*h.2.mlp.c_proj.*", "*h.1.ln_1*"};
  for (const int world : {1, 3}) {
    TinyRun run = Adapted();
    run.world = world;
    run.lora->full = full;
    const TinyResult adapted = Train(run);
    int changed = 0;
    for (const auto& [name, values] : adapted.parameters) {
      const bool trains = name.find("lora_") != std::string::npos ||
                          name.find("wte.") != std::string::npos ||
                          name.find("h.2.mlp.c_proj.") != std::string::npos ||
                          name.find("h.1.ln_1.") != std::string::npos;
      EXPECT_EQ(values != adapted.initial.at(name), trains) << name;
      changed += trains;
    }
    EXPECT_EQ(changed, 14 + 5);
    TinyRun plain = Plain(Merge(adapted.parameters));
    plain.options.lr.lr = 0;
    EXPECT_NEAR(Train(plain).eval_loss, adapted.eval_loss, kTolerance);
  }
}

TEST(Lora, DropoutIsOfWhatAdaptersRead) {
  TinyRun run = Adapted();
  run.options.lr.lr = 0;
  TinyRun dropping = run;
  dropping.lora->dropout = 0.4;
  const TinyResult all = Train(run), dropped = Train(dropping);
  EXPECT_NE(dropped.losses[0], all.losses[0]);
  EXPECT_EQ(dropped.eval_loss, all.eval_loss);  // In training alone.
  for (const int world : {2, 4}) {              // The same elements on any number of ranks.
    dropping.world = world;
    EXPECT_NEAR(Train(dropping).losses[0], dropped.losses[0], kTolerance) << world;
  }
  // Layers themselves read all: where B is zero, nothing is missing.
  run.initial = [](const Parameter& p, int64_t begin, std::span<float> values) {
    FillInitial(p, 3, begin, values);
  };
  dropping.world = 1;
  dropping.initial = run.initial;
  EXPECT_EQ(Train(dropping).losses[0], Train(run).losses[0]);
}

TEST(Lora, StartsAsTheModelItAdapts) {
  TinyRun run = Adapted();
  const auto zero_b = [](const Parameter& p, int64_t begin, std::span<float> values) {
    FillInitial(p, 3, begin, values);
  };
  run.initial = zero_b;
  const TinyResult adapted = Train(run);
  TinyRun plain;
  plain.initial = zero_b;
  EXPECT_EQ(adapted.losses[0], Train(plain).losses[0]);
  for (const auto& [name, values] : adapted.initial) {
    if (name.find("lora_") == std::string::npos) continue;
    double squares = 0;
    for (const float v : values) squares += v * v;
    if (name.find("lora_B") != std::string::npos) {
      EXPECT_EQ(squares, 0) << name;
    } else {  // in x rank values of variance 1 / (3 in).
      EXPECT_NEAR(squares, kRank / 3, kRank / 3 * 0.7) << name;
    }
  }
}

TEST(Lora, StrategyAndRecomputationChangeNoBit) {
  for (const int world : {1, 2, 4}) {
    TinyRun run = Adapted();
    run.world = world;
    run.lora->dropout = 0.25;
    run.lora->full = {"wte"};
    const TinyResult want = Train(run);
    for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp}) {
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        run.options.executor.sharding_strategy = strategy;
        run.options.executor.recompute = recompute;
        EXPECT_EQ(testing::FirstDifference(Train(run), want), "") << world;
      }
    }
  }
}

// An embedding, and a block of one matrix in slices.
class Sliced final : public Model {
 public:
  const std::vector<ModelSegment>& segments() const override { return segments_; }
  void Loss(Tape&, const Batch&, float, View) const override {}
  BatchSpec Inputs(int64_t length) const override { return TokenInputs(length, 8); }
  const EvalMetric* eval_metric() const override { return &kAccuracy; }

 private:
  Parameter wte_{"wte.weight", Shape{8, 4}, Init{}, true};
  Parameter qkv_{"qkv", Shape{9, 4}, {{"q.weight", 5}, {"k.weight", 2}, {"v.weight", 2}}};
  std::vector<ModelSegment> segments_{{"embedding", false, {&wte_}}, {"h.0", true, {&qkv_}}};
};

// Two blocks with names of several parts.
class Layers final : public Model {
 public:
  const std::vector<ModelSegment>& segments() const override { return segments_; }
  void Loss(Tape&, const Batch&, float, View) const override {}
  BatchSpec Inputs(int64_t length) const override { return TokenInputs(length, 8); }

 private:
  Parameter q_{"h.0.attn.q_proj.weight", Shape{4, 4}, Init{}, true};
  Parameter cross_{"h.1.cross.q_proj.weight", Shape{4, 4}, Init{}, true};
  Parameter mine_{"h.1.mlp.my_q_proj.weight", Shape{4, 4}, Init{}, true};
  std::vector<ModelSegment> segments_{{"h.0", true, {&q_}}, {"h.1", true, {&cross_, &mine_}}};
};

TEST(Lora, SlicesHaveAdaptersOfTheirOwn) {
  const LoraModel model(std::make_unique<Sliced>(), {2, 8, {"q.*", "[v].weight"}});
  const std::vector<Parameter*>& parameters = model.segments()[1].parameters;
  ASSERT_EQ(parameters.size(), 5u);
  EXPECT_FALSE(parameters[0]->trainable());
  EXPECT_EQ(model.eval_metric(), &kAccuracy);
  const std::vector<Adapter>& adapters = parameters[0]->adapters();
  ASSERT_EQ(adapters.size(), 2u);
  EXPECT_EQ(adapters[0].column, 0);
  EXPECT_EQ(adapters[1].column, 7);
  EXPECT_EQ(adapters[1].scale, 4);
  EXPECT_EQ(adapters[1].a->name(), "base_model.model.v.lora_A.weight");
  EXPECT_EQ(adapters[1].a->shape(), (Shape{2, 4}));
  EXPECT_EQ(adapters[1].b->shape(), (Shape{2, 2}));
  EXPECT_TRUE(adapters[1].b->is_adapter() && adapters[1].b->trainable());
  // A weight that two targets match is adapted once.
  const LoraModel once(std::make_unique<Sliced>(), {2, 8, {"q.*", "[qv].weight"}});
  EXPECT_EQ(once.segments()[1].parameters[0]->adapters().size(), 2u);
  // A module's name is as good, as with PEFT, and so are its last parts; not a part of one.
  const LoraModel named(std::make_unique<Sliced>(), {2, 8, {"q", "v"}});
  EXPECT_EQ(named.segments()[1].parameters[0]->adapters().size(), 2u);
  EXPECT_EQ(named.segments()[1].parameters[0]->adapters()[1].a->name(), adapters[1].a->name());
}

TEST(Lora, RefusesTargetsThatMatchNothing) {
  const auto make = [](const LoraOptions& options) {
    LoraModel model(std::make_unique<Sliced>(), options);
  };
  EXPECT_NO_THROW(make({}));
  EXPECT_THROW(make({0, 1, {"*"}}), std::invalid_argument);
  EXPECT_THROW(make({4, 1, {"q*", "*q_proj*"}}), std::invalid_argument);
  EXPECT_THROW(make({4, 1, {"*wte*"}}), std::invalid_argument);  // Not a linear layer of a block.
  EXPECT_THROW(make({4, 1, {"weight"}}), std::invalid_argument);
}

TEST(Lora, FullParametersAreWholeMatrices) {
  const LoraModel model(std::make_unique<Sliced>(), {.rank = 2, .full = {"wte", "q", "[kv].*"}});
  EXPECT_FALSE(model.has_adapters());  // A weight that trains gets none.
  EXPECT_TRUE(model.segments()[0].parameters[0]->trainable());
  EXPECT_TRUE(model.segments()[1].parameters[0]->trainable());
  const auto mistakes = [](const std::vector<std::string>& full) {
    std::string all;
    for (const FullMistake& m : FullMistakes(Sliced(), full)) {
      all += std::to_string(m.entry) + ": " + m.message + "\n";
    }
    return all;
  };
  EXPECT_EQ(mistakes({"wte", "q.weight", "k", "v"}), "");
  EXPECT_EQ(mistakes({"wte", "q", "nothing"}),
            "1: q.weight is one matrix with k.weight, v.weight: name all of it, or none\n"
            "2: `nothing` matches no parameter: a name is q.weight\n");
  EXPECT_THROW(LoraModel(std::make_unique<Sliced>(), {.rank = 2, .full = {"q"}}),
               std::invalid_argument);
}

TEST(Lora, TheBaseIsOfFrozenWeightsThatNothingExcludes) {
  const auto coded = [](const std::vector<std::string>& exclude) {
    Layers model;
    for (const ModelSegment& segment : model.segments()) {
      for (Parameter* p : segment.parameters) {
        if (p->name() != "h.0.attn.q_proj.weight") p->Freeze();
      }
    }
    std::string text;
    for (const BaseMistake& m :
         EncodeFrozen(model, {.base = LoraBase::kInt8, .base_exclude = exclude})) {
      text += (m.entry ? std::to_string(*m.entry) : "-") + ": " + m.message + "\n";
    }
    for (const ModelSegment& segment : model.segments()) {
      for (const Parameter* p : segment.parameters) {
        if (p->code() == WeightCode::kInt8) text += p->name() + " ";
      }
    }
    return text;
  };
  EXPECT_EQ(coded({}), "h.1.cross.q_proj.weight h.1.mlp.my_q_proj.weight ");
  EXPECT_EQ(coded({"my_q_proj"}), "h.1.cross.q_proj.weight ");
  EXPECT_EQ(coded({"*cross*", "h.0.attn.q_proj"}),
            "1: `h.0.attn.q_proj` matches no frozen weight of a linear layer in a block: a name is "
            "h.1.mlp.my_q_proj.weight\nh.1.mlp.my_q_proj.weight ");
  EXPECT_EQ(coded({"h.1.*"}),
            "-: base_exclude names every frozen weight of a linear layer: leave base out\n");
  const LoraModel sliced(std::make_unique<Sliced>(), {.rank = 2});
  const std::vector<BaseMistake> mistakes =
      EncodeFrozen(sliced, {.base = LoraBase::kNf4, .base_exclude = {"k"}});
  ASSERT_EQ(mistakes.size(), 1u);
  EXPECT_EQ(mistakes[0].message,
            "k.weight is one matrix with q.weight, v.weight: name all of it, or none");
}

// As in peft/tuners/tuners_utils.py, check_target_module_exists: the whole name, or its end behind
// a dot.
TEST(Lora, TargetsAreTheLastPartsOfAModulesName) {
  const auto adapted = [](const std::string& target) {
    const LoraModel model(std::make_unique<Layers>(), {2, 8, {target}});
    std::string names;
    for (const ModelSegment& segment : model.segments()) {
      for (const Parameter* parameter : segment.parameters) {
        if (!parameter->adapters().empty()) names += parameter->name() + " ";
      }
    }
    return names;
  };
  EXPECT_EQ(adapted("q_proj"), "h.0.attn.q_proj.weight h.1.cross.q_proj.weight ");
  EXPECT_EQ(adapted("attn.q_proj"), "h.0.attn.q_proj.weight ");
  EXPECT_EQ(adapted("h.1.cross.q_proj"), "h.1.cross.q_proj.weight ");
  EXPECT_EQ(adapted("h.1.*"), "h.1.cross.q_proj.weight h.1.mlp.my_q_proj.weight ");
  EXPECT_EQ(adapted("*"),
            "h.0.attn.q_proj.weight h.1.cross.q_proj.weight h.1.mlp.my_q_proj.weight ");
  for (const char* none : {"proj", "q_proj.weights", "attn", "h.0", "q_proj.bias"}) {
    std::string example;
    EXPECT_EQ(UnmatchedTargets(Layers(), {none}, &example), std::vector<size_t>{0}) << none;
    EXPECT_EQ(example, "h.1.mlp.my_q_proj.weight");
  }
}

}  // namespace
}  // namespace fsdp
