// A frozen parameter is one whose learning rate is zero, but for what it costs: without clipping,
// everything else gets the same bits.
#include <gtest/gtest.h>

#include "tests/testing/everything.h"
#include "tests/testing/tiny_run.h"

namespace fsdp::testing {
namespace {

const std::vector<std::vector<const char*>> kPatterns = {
    {"*.bias"},                                    // A part of every unit.
    {"*.h.1.*"},                                   // A unit in the middle.
    {"*wte*", "*wpe*", "*.h.0.*", "*.h.1.attn*"},  // Nothing to do below h.1.
    {"*wpe*"},                                     // One table of two.
    {"*wte*"},                                     // The head's gradient goes on through it.
};

TinyRun With(const std::vector<const char*>& patterns, bool frozen) {
  TinyRun run;
  run.options.executor.max_norm = 0;
  run.options.optimizer.kind = OptimizerOptions::Kind::kAdamW;
  for (const char* pattern : patterns) {
    run.options.optimizer.groups.push_back({pattern, 0, frozen ? 1.0 : 0.0, frozen});
  }
  return run;
}

// Under AddressSanitizer the code counts and not the numbers: one world.
#ifdef __SANITIZE_ADDRESS__
constexpr int kWorlds[] = {2};
#else
constexpr int kWorlds[] = {1, 2, 3};
#endif

// A run takes half of them.
TEST(Frozen, IsALearningRateOfZero) {
  size_t i = 0;
  for (const std::vector<const char*>& patterns : kPatterns) {
    for (const int world : kWorlds) {
      for (const Strategy strategy :
           {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
        for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
          ++i;
          if (OfAnotherPart(i + i / 2, 2)) continue;
          TinyRun still = With(patterns, false), frozen = With(patterns, true);
          for (TinyRun* run : {&still, &frozen}) {
            run->world = world;
            run->options.executor.sharding_strategy = strategy;
            run->options.executor.recompute = recompute;
          }
          const TinyResult want = Train(still), got = Train(frozen);
          SCOPED_TRACE(std::string(patterns[0]) + ", world " + std::to_string(world));
          EXPECT_EQ(got.losses, want.losses);
          EXPECT_EQ(got.eval_loss, want.eval_loss);
          EXPECT_EQ(got.parameters, want.parameters);
          // The gradients and state that are left are the same, and there are fewer.
          for (const auto& [name, values] : got.gradients) {
            EXPECT_EQ(values, want.gradients.at(name)) << name;
          }
          for (const auto& [name, values] : got.state) EXPECT_EQ(values, want.state.at(name));
          EXPECT_LT(got.gradients.size(), want.gradients.size());
          EXPECT_EQ(got.state.size(), 2 * got.gradients.size());
          EXPECT_EQ(want.gradients.size(), want.parameters.size());
        }
      }
    }
  }
}

TEST(Frozen, ClipsByTheNormOfWhatTrains) {
  TinyRun run = With({"*wte*", "*wpe*"}, true);
  const TinyResult free = Train(run);
  run.options.executor.max_norm = 1e-3f;
  const TinyResult clipped = Train(run);
  EXPECT_EQ(free.grad_norms[0], clipped.grad_norms[0]);
  EXPECT_LT(free.grad_norms[0], Train(TinyRun()).grad_norms[0]);
}

}  // namespace
}  // namespace fsdp::testing
