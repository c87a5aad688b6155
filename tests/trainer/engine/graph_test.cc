// Promise 1 of docs/design.md, section 5, on a model that is no chain of equal blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>

#include "tests/testing/random_graph.h"
#include "tests/testing/tiny_run.h"
#include "tests/testing/toy_graph.h"
#include "tests/trainer/engine/settings.h"

namespace fsdp::testing {
namespace {

TinyRun OfTheGraph(TinyRun run) {
  run.model = [] { return std::make_unique<ToyGraph>(); };
  run.rows = ToyGraph::Rows();
  return run;
}

TEST(Graph, PairwiseSettingsChangeNoBit) {
  std::map<std::string, TinyResult> plain;
  for (const TinyRun& setting : PairwiseRuns(RunsApartAgain())) {
    const TinyRun run = OfTheGraph(setting), like = Plain(run);
    SCOPED_TRACE(Describe(run));
    const auto [baseline, fresh] = plain.try_emplace(Describe(like));
    if (fresh) baseline->second = Train(like);
    EXPECT_EQ(FirstDifference(Train(run), baseline->second), "");
  }
  EXPECT_GT(plain.size(), 10u / RunsApartAgain());
}

// Graphs of segments with one to four inputs, each under two settings of the above.
TEST(Graph, NoneOfAnyShapeChangesABit) {
  const std::vector<TinyRun> settings = PairwiseRuns();
  constexpr uint64_t kGraphs = 16 / kRunsApart;
  size_t next = 0, most_segments = 0;
  for (uint64_t seed = 1; seed <= kGraphs; ++seed) {
    for (int i = 0; i < 2; ++i) {
      TinyRun run = settings[(next += 7) % settings.size()];
      run.model = [seed] { return std::make_unique<RandomGraph>(seed); };
      run.rows = ToyGraph::Rows();
      SCOPED_TRACE("graph " + std::to_string(seed) + ", " + Describe(run));
      EXPECT_EQ(FirstDifference(Train(run), Train(Plain(run))), "");
    }
    most_segments = std::max(most_segments, RandomGraph(seed).segments().size());
  }
  EXPECT_GT(most_segments, 7u);
}

TEST(Graph, WorldsAgreeWithOneRank) {
  TinyRun run = OfTheGraph({});
  run.options.optimizer.momentum = 0;
  run.options.executor.max_norm = 0;
  const TinyResult one = Train(run);
  ASSERT_EQ(one.parameters.size(), 10u);
  for (const int world : {2, 3, 5}) {
    run.world = world;
    const TinyResult other = Train(run);
    for (size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(other.losses[i], one.losses[i], 2e-6 * one.losses[i]) << world;
      EXPECT_NEAR(other.grad_norms[i], one.grad_norms[i], 2e-6 * one.grad_norms[i]) << world;
    }
    for (const auto& [name, values] : one.gradients) {
      double norm = 0, apart = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        norm += values[i] * values[i];
        apart += std::pow(values[i] - other.gradients.at(name)[i], 2);
      }
      EXPECT_GT(norm, 0) << name;
      EXPECT_LT(std::sqrt(apart), 4e-6 * std::sqrt(norm)) << name << " on " << world;
    }
  }
}

// Finite differences of step 1's loss, by every parameter.
TEST(Graph, GradientsAreTheLosses) {
  TinyRun run = OfTheGraph({});
  run.steps = 1;
  run.options.executor.max_norm = 0;
  run.options.optimizer.momentum = 0;
  const TinyResult at = Train(run);
  for (const auto& [name, gradient] : at.gradients) {
    for (const size_t i : {size_t{0}, gradient.size() / 2, gradient.size() - 1}) {
      const auto loss = [&, name = name](double by) {
        TinyRun moved = run;
        moved.initial = [&, name](const Parameter& p, int64_t begin, std::span<float> values) {
          const std::vector<float>& whole = at.initial.at(p.name());
          std::copy_n(whole.begin() + begin, values.size(), values.begin());
          const auto to = static_cast<int64_t>(i) - begin;
          if (p.name() == name && to >= 0 && to < std::ssize(values)) {
            values[static_cast<size_t>(to)] += static_cast<float>(by);
          }
        };
        return static_cast<double>(Train(moved).losses[0]);
      };
      constexpr double kStep = 1e-2;
      const double slope = (loss(kStep) - loss(-kStep)) / (2 * kStep);
      EXPECT_NEAR(gradient[i], slope, 2e-3 + 0.02 * std::abs(slope)) << name << "[" << i << "]";
    }
  }
}

}  // namespace
}  // namespace fsdp::testing
