// Adapters of experts against the model that they are merged into.
#include "trainer/nn/lora.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/moe/moe.h"
#include "tests/models/moe/set_shape.h"
#include "tests/testing/tiny_run.h"

namespace fsdp::testing {
namespace {

constexpr size_t kRank = 3;
constexpr float kScale = 2;  // alpha / rank.
constexpr double kTolerance = 1e-5;

TinyRun Adapted() {
  TinyRun run;
  run.moe = TinyRun::TinyMoe();
  run.lora = LoraOptions{
      .rank = kRank, .alpha = kScale * kRank, .targets = {"gate_proj", "*experts.*down_proj*"}};
  run.options.executor.max_norm = 0;
  run.options.executor.balance = {.aux_loss = 0.3, .z_loss = 0.02};
  return run;
}

// Calls visit(o, i, r) for each term of scale B A.
template <typename Visit>
void ForEachTerm(const std::vector<float>& a, const std::vector<float>& b, const Visit& visit) {
  const size_t in = a.size() / kRank, out = b.size() / kRank;
  for (size_t o = 0; o < out; ++o) {
    for (size_t i = 0; i < in; ++i) {
      for (size_t r = 0; r < kRank; ++r) visit(o * in + i, o * kRank + r, r * in + i);
    }
  }
}

// W + scale B A, by the names of slices.
Tensors Merge(const Tensors& parameters) {
  Tensors merged;
  for (const auto& [name, values] : parameters) {
    if (name.find("lora_") != std::string::npos) continue;
    std::vector<double> sums(values.begin(), values.end());
    const auto a = parameters.find(LoraName(name, 'A')), b = parameters.find(LoraName(name, 'B'));
    if (a != parameters.end()) {
      ForEachTerm(a->second, b->second, [&](size_t w, size_t of_b, size_t of_a) {
        sums[w] += kScale * static_cast<double>(b->second[of_b]) * a->second[of_a];
      });
    }
    merged[name] = {sums.begin(), sums.end()};
  }
  return merged;
}

TinyRun Plain(const Tensors& slices) {
  TinyRun run = Adapted();
  run.lora.reset();
  run.initial = [slices](const Parameter& p, int64_t begin, std::span<float> values) {
    for (const SlicePiece& piece : SlicePieces(p, begin, std::ssize(values))) {
      std::copy_n(slices.at(piece.slice->name).begin() + piece.begin, piece.count,
                  values.begin() + piece.at);
    }
  };
  return run;
}

void ExpectNear(const std::vector<float>& got, const std::vector<double>& want,
                const std::string& what) {
  double norm = 0, difference = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    norm += want[i] * want[i];
    difference += (got[i] - want[i]) * (got[i] - want[i]);
  }
  EXPECT_LE(std::sqrt(difference), kTolerance * std::sqrt(norm)) << what;
}

TEST(MoeLora, TrainsWhatTheMergedModelWouldCompute) {
  for (const int world : {1, 3}) {
    TinyRun run = Adapted();
    run.world = world;
    run.steps = 1;
    const TinyResult adapted = Train(run);
    TinyRun plain = Plain(Merge(adapted.initial));
    plain.steps = 1;
    const TinyResult merged = Train(plain);
    EXPECT_NEAR(adapted.losses[0], merged.losses[0], kTolerance);
    size_t adapters = 0;
    for (const auto& [name, dw] : merged.gradients) {
      const auto a = adapted.initial.find(LoraName(name, 'A'));
      if (a == adapted.initial.end()) continue;
      ++adapters;
      const std::vector<float>& b = adapted.initial.at(LoraName(name, 'B'));
      std::vector<double> da(a->second.size()), db(b.size());
      ForEachTerm(a->second, b, [&, dw = std::span(dw)](size_t w, size_t of_b, size_t of_a) {
        da[of_a] += kScale * static_cast<double>(dw[w]) * b[of_b];
        db[of_b] += kScale * static_cast<double>(dw[w]) * a->second[of_a];
      });
      ExpectNear(adapted.gradients.at(LoraName(name, 'A')), da, name);
      ExpectNear(adapted.gradients.at(LoraName(name, 'B')), db, name);
    }
    EXPECT_EQ(adapters, 1u + 2 * (5 + 1 + 5));  // Dense and shared gates, gates, and downs.
    EXPECT_EQ(adapted.gradients.size(), 2 * adapters);
  }
}

TEST(MoeLora, StrategyAndRecomputationChangeNoBit) {
  for (const int world : {1, 3}) {
    TinyRun run = Adapted();
    run.world = world;
    run.options.executor.sharding_strategy = Strategy::kShardGradOp;
    const TinyResult want = Train(run);
    EXPECT_LT(want.losses.back(), want.losses.front());
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      run.options.executor.sharding_strategy = Strategy::kFullShard;
      run.options.executor.recompute = recompute;
      EXPECT_EQ(FirstDifference(Train(run), want), "") << world;
    }
  }
}

// Adapters of pieces are pieces of adapters.
TEST(MoeLora, PiecesChangeNoBit) {
  TinyRun run = Adapted();
  run.initial = InitialOfSlices;
  run.world = 2;
  TinyResult whole = Train(run);
  run.moe->expert_pieces = 5;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    run.options.executor.recompute = recompute;
    const TinyResult pieces = Train(run);
    whole.grad_norms = pieces.grad_norms;  // They are other sums.
    EXPECT_EQ(FirstDifference(pieces, whole), "");
  }
  // Names that say which rows of the whole adapter they are.
  const LoraModel model(MakeMoe(*run.moe), *run.lora);
  std::set<std::string> names;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) names.insert(p->name());
  }
  const std::string last = LoraName("model.layers.2.mlp.experts.0.down_proj.weight", 'A');
  EXPECT_EQ(names.count(last + "[12:15]"), 1u);
  EXPECT_EQ(names.count(last), 0u);
}

// Left out in silence they would be where most parameters are.
TEST(MoeLora, ExpertsAreAdaptedTogetherAndDropNothing) {
  const auto why = [](const LoraOptions& options) {
    return ExpertMistake(*MakeMoe(TinyRun::TinyMoe()), options);
  };
  EXPECT_EQ(why({.targets = {"*"}}), "");
  EXPECT_EQ(why({.targets = {"q_proj"}, .dropout = 0.1}), "");
  EXPECT_NE(why({.targets = {"*experts.3.up_proj*"}}).find("adapted together"), std::string::npos);
  EXPECT_NE(why({.targets = {"*"}, .dropout = 0.1}).find("dropout is not for"), std::string::npos);
  EXPECT_THROW(LoraModel(MakeMoe(TinyRun::TinyMoe()), {.targets = {"*.0.up_proj*"}}),
               std::invalid_argument);
  // A router is no linear layer.
  std::string example;
  const auto model = MakeMoe(TinyRun::TinyMoe());
  EXPECT_EQ(UnmatchedTargets(*model, {"gate"}, &example).size(), 1u);
}

}  // namespace
}  // namespace fsdp::testing
