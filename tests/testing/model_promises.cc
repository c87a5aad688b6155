#include "tests/testing/model_promises.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace fsdp::testing {

void ExpectStrategyAndRecomputationChangeNoBit(TinyRun run) {
  for (const int world : {1, 3}) {
    run.world = world;
    run.options.executor.sharding_strategy = Strategy::kShardGradOp;
    const TinyResult plain = Train(run);
    for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp}) {
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        run.options.executor.sharding_strategy = strategy;
        run.options.executor.recompute = recompute;
        EXPECT_EQ(FirstDifference(Train(run), plain), "")
            << "world " << world << " recompute " << static_cast<int>(recompute);
      }
    }
  }
}

void ExpectOffloadChangesNoBit(TinyRun run) {
  run.world = 2;
  const TinyResult plain = Train(run);
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    run.options.executor.recompute = recompute;
    run.options.executor.activation_offload = ActivationOffload::kHost;
    run.options.executor.cpu_offload.optimizer = run.options.executor.cpu_offload.params = true;
    EXPECT_EQ(FirstDifference(Train(run), plain), "") << static_cast<int>(recompute);
  }
}

void ExpectTheRootChangesNoBit(TinyRun run) {
  run.world = 2;
  ExecutorOptions& o = run.options.executor;
  o.max_norm = 0;  // Clipping would put the norm into every bit.
  TinyResult units = Train(run);
  o.auto_wrap.outside = WrapPolicy::Outside::kRoot;
  for (const bool caching : {false, true}) {
    if (caching) {
      o.limiter = FsdpOptions::Limiter::kHost;
      o.buffers = FsdpOptions::Buffers::kCaching;
    }
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      o.recompute = recompute;
      const TinyResult root = Train(run);
      for (size_t s = 0; s < units.grad_norms.size(); ++s) {
        EXPECT_NEAR(root.grad_norms[s] / units.grad_norms[s], 1, 1e-6) << caching;
      }
      units.grad_norms = root.grad_norms;
      EXPECT_EQ(FirstDifference(root, units), "")
          << "caching " << caching << " recompute " << static_cast<int>(recompute);
    }
  }
}

void ExpectRanksAndMicroBatchesAgree(TinyRun run) {
  const TinyResult one = Train(run);
  for (const auto& [world, rows] : {std::pair(1, 3), {2, 1}, {3, 2}, {5, 1}}) {
    run.world = world;
    run.options.executor.micro_batch_size = rows;
    const TinyResult other = Train(run);
    for (size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(other.losses[s] / one.losses[s], 1, 1e-5) << "world " << world;
      EXPECT_NEAR(other.grad_norms[s] / one.grad_norms[s], 1, 1e-4) << "world " << world;
    }
  }
}

void ExpectGradientOfDifferences(TinyRun run) {
  run.steps = 1;
  const TinyResult base = Train(run);
  const double norm = base.grad_norms[0];
  const auto loss = [&](double h) {
    TinyRun moved = run;
    moved.initial = [&](const Parameter& parameter, int64_t begin, std::span<float> values) {
      for (const SlicePiece& piece :
           SlicePieces(parameter, begin, static_cast<int64_t>(values.size()))) {
        const std::string& name = piece.slice->name;
        for (int64_t i = 0; i < piece.count; ++i) {
          const auto element = static_cast<size_t>(piece.begin + i);
          values[static_cast<size_t>(piece.at + i)] =
              base.initial.at(name)[element] +
              static_cast<float>(h / norm) * base.gradients.at(name)[element];
        }
      }
    };
    return static_cast<double>(Train(moved).losses[0]);
  };
  constexpr double kStep = 2e-3;
  EXPECT_NEAR((loss(kStep) - loss(-kStep)) / (2 * kStep), norm, 0.01 * norm);
}

}  // namespace fsdp::testing
