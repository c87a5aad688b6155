// Which elements decay, and what state starts as, over all ranks of a world. Parameters are 1 and
// gradients 0, so that a step of rate 1/2 and decay 1/2 leaves 3/4, exactly, where it is applied
// once, with AdamW as with SGD.
#include "trainer/optim/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "tests/testing/tiny_run.h"
#include "trainer/autograd/tape.h"
#include "trainer/comm/mesh_communicators.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/pooled_allocator.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/kernel.h"

namespace fsdp {
namespace {

using testing::TinyRun;

struct Updated {
  std::map<std::string, std::vector<float>> parameters;
  std::map<std::string, std::vector<int>> owners;
  std::vector<float> padding, initial_state;
};

// One block of one matrix in slices, of which the second decays. It computes nothing.
class SlicedModel final : public Model {
 public:
  const std::vector<ModelSegment>& segments() const override { return segments_; }
  void Loss(Tape& tape, const Batch&, float, View) const override {
    tape.Segment(0, {}, /*recomputable=*/false, [](Tape&, const Var&) { return Var{}; });
  }
  BatchSpec Inputs(int64_t length) const override { return TokenInputs(length, 8); }

 private:
  Parameter qkv_{"qkv", Shape{70, 11}, {{"q", 30}, {"k", 20, {}, true}, {"v", 20}}};
  std::vector<ModelSegment> segments_{{"h.0", true, {&qkv_}}};
};

struct Options {
  ExecutorOptions executor;
  OptimizerOptions optimizer;
};

// The inputs of every element of every shard, step by step.
struct Given {
  float gradient = 0;
  double lr = 0.5;
  std::vector<float> coefficients = {1};  // By step.
  int64_t updates = 0;                    // Landed before.
  // In place of `gradient`, by the element of a parameter.
  std::function<float(const std::string& parameter, int64_t element)> gradient_of = nullptr;
};

std::vector<float> Floats(const View& shard) {
  const View host = Host(shard);
  std::vector<float> values(shard.NumElements());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = shard.dtype == DType::kFloat32 ? host.As<float>()[i]
                : shard.dtype == DType::kUInt8 ? static_cast<float>(host.As<uint8_t>()[i])
                                               : static_cast<float>(host.As<BFloat16>()[i]);
  }
  return values;
}

// These steps on every rank of the world in turn; nothing is communicated.
Updated StepOnEveryRank(Model& model, const Options& options, int world, const Given& given = {}) {
  Updated out;
  for (int rank = 0; rank < world; ++rank) {
    CpuDevice device;
    PooledAllocator allocator(device);
    // Nobody's communicators: nothing is communicated.
    const MeshCommunicators communicators(
        MeshFor(options.executor, rank, world), /*queues=*/1,
        [](const std::string&, const RankGroup&) { return nullptr; });
    Executor executor(device, allocator, model, options.executor, communicators);
    Optimizer optimizer(options.optimizer, executor, model);
    executor.Initialize([](const Parameter&, int64_t, std::span<float> values) {
      std::fill(values.begin(), values.end(), 1.0f);
    });
    executor.Synchronize();
    for (const ShardState& state : optimizer.state()) {
      for (const View& shard : state.shards) {
        const std::vector<float> values = Floats(shard);
        out.initial_state.insert(out.initial_state.end(), values.begin(), values.end());
      }
    }
    float factor = 1;
    StepInputs step{.lr = given.lr};
    const View inputs(reinterpret_cast<std::byte*>(&step), DType::kUInt8, BlockShape<StepInputs>());
    const View coefficient(reinterpret_cast<std::byte*>(&factor), DType::kFloat32, Shape{1});
    const std::vector<FlatParameter>& units = executor.layout().flat_parameters;
    optimizer.SetUpdates(executor.compute(), given.updates);
    for (const float given_factor : given.coefficients) {
      factor = given_factor;
      optimizer.Begin(executor.compute(), inputs, coefficient);
      for (int u = 0; u < static_cast<int>(units.size()); ++u) {
        Fill(executor.compute(), given.gradient_of ? 0 : given.gradient, executor.gradient(u));
        if (given.gradient_of) {
          executor.Synchronize();
          for (const Piece& piece : PiecesOfShard(units[u], executor.shard_rank())) {
            for (int64_t i = 0; i < piece.count; ++i) {
              Host(executor.gradient(u)).As<float>()[piece.at + i] =
                  given.gradient_of(piece.parameter->name, piece.begin + i);
            }
          }
        }
        optimizer.Step(executor.compute(),
                       {u, executor.master(u), executor.gradient(u), coefficient});
      }
      executor.Synchronize();
    }
    for (int u = 0; u < static_cast<int>(units.size()); ++u) {
      const std::vector<float> shard = Floats(executor.master(u));
      std::vector<bool> used(units[u].shard_size);
      for (const Piece& piece : PiecesOfShard(units[u], executor.shard_rank())) {
        std::vector<float>& values = out.parameters[piece.parameter->name];
        std::vector<int>& owners = out.owners[piece.parameter->name];
        values.resize(piece.parameter->size());
        owners.resize(piece.parameter->size());
        for (int64_t i = 0; i < piece.count; ++i) {
          values[piece.begin + i] = shard[piece.at + i];
          ++owners[piece.begin + i];
          used[piece.at + i] = true;
        }
      }
      for (int64_t i = 0; i < units[u].shard_size; ++i) {
        if (!used[i]) out.padding.push_back(shard[i]);
      }
    }
  }
  return out;
}

class OptimizerTest : public ::testing::TestWithParam<OptimizerOptions> {};

TEST_P(OptimizerTest, MatricesDecayOnceAndNothingElse) {
  Gpt2 model(TinyRun::TinyConfig());
  for (const int world : {1, 2, 3, 5, 7}) {
    for (const AutoWrap wrap : {AutoWrap::kTransformerBlock, AutoWrap::kNone}) {
      Options options;
      options.optimizer = GetParam();
      options.optimizer.weight_decay = 0.5;
      options.executor.auto_wrap.policy = wrap;
      const Updated updated = StepOnEveryRank(model, options, world);
      size_t parameters = 0;
      for (const ModelSegment& segment : model.segments()) {
        for (const Parameter* p : segment.parameters) {
          ++parameters;
          const int64_t n = p->shape().NumElements();
          const float want = p->shape().rank() == 2 ? 0.75f : 1.0f;
          EXPECT_EQ(updated.parameters.at(p->name()), std::vector<float>(n, want))
              << p->name() << " in a world of " << world;
          EXPECT_EQ(updated.owners.at(p->name()), std::vector<int>(n, 1)) << p->name();
        }
      }
      EXPECT_EQ(updated.parameters.size(), parameters);
      EXPECT_EQ(updated.padding, std::vector<float>(updated.padding.size(), 0.0f));
    }
  }
}

TEST_P(OptimizerTest, SlicesDecayByThemselves) {
  SlicedModel model;
  std::vector<float> want(70 * 11, 1.0f);
  std::fill(want.begin() + 30 * 11, want.begin() + 50 * 11, 0.75f);
  for (const int world : {1, 2, 3, 5}) {
    Options options;
    options.optimizer = GetParam();
    options.optimizer.weight_decay = 0.5;
    const Updated updated = StepOnEveryRank(model, options, world);
    EXPECT_EQ(updated.parameters.at("qkv"), want) << "in a world of " << world;
    EXPECT_EQ(updated.padding, std::vector<float>(updated.padding.size(), 0.0f));
  }
}

// The gradient is zero, so a rate of 1/2 x 1/4 and a decay of 1/2 leave 15/16 with either rule.
TEST_P(OptimizerTest, GroupsHaveRatesAndDecaysOfTheirOwn) {
  Gpt2 model(TinyRun::TinyConfig());
  Options options;
  options.optimizer = GetParam();
  options.optimizer.weight_decay = 0.5;
  options.optimizer.groups = {{"*.h.1.*.weight", 0.5, 0.25, false},
                              {"*.h.1.*", 1.0, 1, false},
                              {"*wte*", 0, 1, false},
                              {"*wpe*", {}, 0, false}};
  for (const int world : {1, 3}) {
    const Updated updated = StepOnEveryRank(model, options, world);
    for (const auto& [name, values] : updated.parameters) {
      const bool weight = name.ends_with(".weight"), norm = name.find("ln_") != std::string::npos;
      float want = weight && !norm ? 0.75f : 1.0f;
      if (name.find(".h.1.") != std::string::npos) want = weight ? 15.0f / 16 : 0.5f;
      if (name.find("wte") != std::string::npos || name.find("wpe") != std::string::npos) want = 1;
      EXPECT_EQ(values, std::vector<float>(values.size(), want)) << name;
    }
  }
}

// Moments are rounded by draws keyed by the name and the element that a file has. So parameters are
// the same in any world, and with all units joined; they differ with the seed, and by element.
TEST_P(OptimizerTest, RoundedStateDependsOnNoShard) {
  const Given given{.gradient = 0.3f, .lr = 0.1, .coefficients = {1, 0.7f, 0.5f}};
  Options options;
  options.optimizer = GetParam();
  options.executor.state_dtype = DType::kBFloat16;
  const bool rounds =
      options.optimizer.kind != OptimizerOptions::Kind::kSgd || options.optimizer.momentum > 0;
  Gpt2 gpt2(TinyRun::TinyConfig());
  SlicedModel sliced;
  for (Model* model : {static_cast<Model*>(&gpt2), static_cast<Model*>(&sliced)}) {
    options.executor.auto_wrap.policy = AutoWrap::kTransformerBlock;
    options.optimizer.seed = 7;
    const Updated one = StepOnEveryRank(*model, options, 1, given);
    options.optimizer.seed = 8;
    EXPECT_EQ(one.parameters != StepOnEveryRank(*model, options, 1, given).parameters, rounds);
    options.optimizer.seed = 7;
    for (const auto& [name, values] : one.parameters) {
      const std::set<float> different(values.begin(), values.end());
      if (values.size() > 500) {
        EXPECT_EQ(different.size() > 2, rounds) << name;
      }
    }
    for (const int world : {2, 3, 5, 7}) {
      for (const AutoWrap wrap : {AutoWrap::kTransformerBlock, AutoWrap::kNone}) {
        options.executor.auto_wrap.policy = wrap;
        EXPECT_EQ(StepOnEveryRank(*model, options, world, given).parameters, one.parameters)
            << world;
      }
    }
  }
  // Each slice by itself, from its first element on.
  if (!rounds) return;
  const Updated updated = StepOnEveryRank(sliced, options, 2, given);
  const std::vector<float>& qkv = updated.parameters.at("qkv");
  const int64_t q = 30 * 11, v = 50 * 11;
  EXPECT_FALSE(std::equal(qkv.begin(), qkv.begin() + 20 * 11, qkv.begin() + v)) << "q and v";
  EXPECT_FALSE(std::equal(qkv.begin(), qkv.begin() + q - 220, qkv.begin() + 220));
}

// A model with tensors of every size around the least that has codes, and a matrix of slices.
class CodedModel final : public Model {
 public:
  const std::vector<ModelSegment>& segments() const override { return segments_; }
  void Loss(Tape& tape, const Batch&, float, View) const override {
    tape.Segment(0, {}, /*recomputable=*/false, [](Tape&, const Var&) { return Var{}; });
  }
  BatchSpec Inputs(int64_t length) const override { return TokenInputs(length, 8); }

 private:
  Parameter bias_{"bias", Shape{5000}, Init{}, false}, odd_{"odd", Shape{65, 67}, Init{}, true},
      small_{"small", Shape{63, 65}, Init{}, true},
      qkv_{"qkv", Shape{48, 256}, {{"q", 16}, {"k", 16}, {"v", 16}}},
      uneven_{"uneven", Shape{90, 70}, {{"a", 30}, {"b", 60}}},
      last_{"last", Shape{80, 100}, Init{}, true};
  std::vector<ModelSegment> segments_{{"h.0", true, {&bias_, &odd_, &small_}},
                                      {"h.1", true, {&qkv_, &uneven_, &last_}}};
};

// Every element has the update of its block of 256 of its own tensor, whatever the shards and
// units are. Tensors are of very different sizes: one that saw another's absmax would lose its
// small values.
TEST(CodedOptimizer, CodesDependOnNoShardAndNoUnit) {
  CodedModel model;
  Options options;
  options.executor.state_dtype = DType::kUInt8;
  const Given given{.lr = 0.1,
                    .coefficients = {1, 0.7f, NAN, 0.5f},
                    .gradient_of = [](const std::string& name, int64_t i) {
                      const auto mixed =
                          static_cast<float>((i * 2654435761u + name.size() * 77) % 2003) - 1001;
                      return mixed * std::ldexp(1.0f, name == "odd" || name == "last" ? 4 : -8);
                    }};
  const Updated one = StepOnEveryRank(model, options, 1, given);
  const std::vector<float> padding(one.padding.size(), 0.0f);
  EXPECT_EQ(one.padding, padding);
  for (const int world : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (const AutoWrap wrap : {AutoWrap::kTransformerBlock, AutoWrap::kNone}) {
      options.executor.auto_wrap.policy = wrap;
      const Updated updated = StepOnEveryRank(model, options, world, given);
      EXPECT_EQ(updated.parameters, one.parameters) << world;
      EXPECT_EQ(updated.padding, std::vector<float>(updated.padding.size(), 0.0f));
    }
  }
  // And with fp32 state vectors, small tensors and uneven slices are updated so, others not.
  options.executor.state_dtype = DType::kFloat32;
  const Updated exact = StepOnEveryRank(model, options, 1, given);
  for (const auto& [name, values] : exact.parameters) {
    const bool coded = name == "odd" || name == "qkv" || name == "last";
    EXPECT_EQ(values != one.parameters.at(name), coded) << name;
  }
}

TEST(CodedOptimizer, GroupsChooseTheStateOfParameters) {
  CodedModel model;
  ExecutorOptions options;
  options.state_choices = {{"q", DType::kUInt8}, {"odd", {}}, {"*d*", DType::kBFloat16}};
  std::map<std::string, DType> states;
  for (const FlatParameter& flat : LayoutFor(options, model, 2).flat_parameters) {
    for (const Placement& p : flat.parameters) states[p.name] = flat.dtypes.state;
  }
  const DType wide = DType::kFloat32;
  EXPECT_EQ(states, (std::map<std::string, DType>{{"bias", wide},
                                                  {"odd", wide},
                                                  {"small", wide},
                                                  {"qkv", DType::kUInt8},
                                                  {"uneven", wide},
                                                  {"last", wide}}));
  options.state_dtype = DType::kUInt8;
  options.state_choices = {{"last", wide}, {"bias", DType::kUInt8}};
  for (const FlatParameter& flat : LayoutFor(options, model, 2).flat_parameters) {
    for (const Placement& p : flat.parameters) {
      const bool coded = p.name == "odd" || p.name == "qkv";
      EXPECT_EQ(flat.HasCodes(), coded) << p.name;
      EXPECT_EQ(coded ? p.offset % 256 : 0, 0) << p.name;
    }
  }
  // Every other of its slices would have another form.
  std::vector<ParameterGroup> groups(1);
  groups[0].match = "k";
  groups[0].state_dtype = DType::kUInt8;
  const std::vector<GroupMistake> mistakes = FreezeParameters(model, groups);
  ASSERT_EQ(mistakes.size(), 1u);
  EXPECT_EQ(mistakes[0].message, "one matrix holds these, so all have one state_dtype: q k v");
}

TEST(CodedOptimizer, TwoBytesAnElementAndEightABlock) {
  CodedModel model;
  ExecutorOptions options;
  options.state_dtype = DType::kUInt8;
  for (const FlatParameter& flat : LayoutFor(options, model, 3).flat_parameters) {
    int64_t bytes = 0;
    for (const KeptState& state : KeptStates({}, LayoutFor(options, model, 3))) {
      bytes += state.ShardBytes(flat);
    }
    const int64_t n = flat.shard_size;
    EXPECT_EQ(bytes, flat.HasCodes() ? 2 * n + 8 * n / 256 : 8 * n) << flat.name;
  }
}

TEST_P(OptimizerTest, StateStartsAtZero) {
  Gpt2 model(TinyRun::TinyConfig());
  Options options;
  options.optimizer = GetParam();
  const bool none =
      options.optimizer.kind == OptimizerOptions::Kind::kSgd && options.optimizer.momentum == 0;
  for (const int world : {1, 3}) {
    const Updated updated = StepOnEveryRank(model, options, world);
    EXPECT_EQ(updated.initial_state.empty(), none);
    EXPECT_EQ(updated.initial_state, std::vector<float>(updated.initial_state.size(), 0.0f));
  }
}

// By the formulas of the ops, which their own tests hold to PyTorch: each option gets there, and
// the state of a step is that of the next.
TEST_P(OptimizerTest, EveryOptionReachesTheStep) {
  Gpt2 model(TinyRun::TinyConfig());
  Options options;
  OptimizerOptions& o = options.optimizer = GetParam();
  o.weight_decay = 0;
  o.beta1 = 0.5, o.beta2 = 0.75, o.eps = 0.125;
  const Given given{.gradient = 3, .lr = 0.25, .coefficients = {0.5f, 0.25f}, .updates = 2};
  double p = 1, m = 0, v = 0;
  double t = 2;
  for (const float coefficient : given.coefficients) {
    const double g = coefficient * given.gradient;
    ++t;
    if (o.kind == OptimizerOptions::Kind::kSgd) {
      m = o.momentum * m + g;
      p -= given.lr * m;
    } else {
      m = o.beta1 * m + (1 - o.beta1) * g;
      v = o.beta2 * v + (1 - o.beta2) * g * g;
      p -= given.lr * m / (1 - std::pow(o.beta1, t)) /
           (std::sqrt(v / (1 - std::pow(o.beta2, t))) + o.eps);
    }
  }
  for (const int world : {1, 3}) {
    for (const auto& [name, values] : StepOnEveryRank(model, options, world, given).parameters) {
      for (const float value : values) ASSERT_NEAR(value, p, 1e-6) << name;
    }
  }
}

// On the device, which alone knows which steps land: one that is skipped corrects no bias.
TEST_P(OptimizerTest, ASkippedStepIsNotCounted) {
  SlicedModel model;
  Options options;
  options.optimizer = GetParam();
  const float skip = std::nanf("");
  const Given all{.gradient = 3, .coefficients = {0.5f, 0.25f, 1.0f}};
  const Given some{.gradient = 3, .coefficients = {skip, 0.5f, skip, skip, 0.25f, 1.0f}};
  EXPECT_EQ(StepOnEveryRank(model, options, 1, some).parameters,
            StepOnEveryRank(model, options, 1, all).parameters);
}

OptimizerOptions Sgd(double momentum) {
  OptimizerOptions options;
  options.kind = OptimizerOptions::Kind::kSgd;
  options.momentum = momentum;
  return options;
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerTest,
                         ::testing::Values(OptimizerOptions{}, Sgd(0), Sgd(0.9)));

}  // namespace
}  // namespace fsdp
