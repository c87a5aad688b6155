// Promises 1 and 3 of docs/design.md, section 5, on a tiny GPT-2: which settings change no bit, and
// how far the others may.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>

#include "tests/testing/tiny_run.h"
#include "tests/trainer/engine/settings.h"
#include "trainer/nn/initial_values.h"

namespace fsdp::testing {
namespace {

void ExpectSameBits(const TinyRun& run, const TinyResult& plain) {
  EXPECT_EQ(FirstDifference(Train(run), plain), "") << Describe(run);
}

TEST(Bitwise, PairwiseSettingsChangeNoBit) {
  std::map<std::string, TinyResult> plain;
  const std::vector<TinyRun> runs = PairwiseRuns();
  for (const TinyRun& run : runs) {
    SCOPED_TRACE(Describe(run));
    const TinyRun like = Plain(run);
    const auto [baseline, fresh] = plain.try_emplace(Describe(like));
    if (fresh) baseline->second = Train(like);
    ExpectSameBits(run, baseline->second);
  }
  std::printf("%zu runs against %zu (seed %llu)\n", runs.size(), plain.size(),
              static_cast<unsigned long long>(kPairwiseSeed));
}

TEST(Bitwise, PrefetchLimitsBuffersAndCommunicators) {
  TinyRun run;
  run.world = 3;
  const TinyResult plain = Train(Plain(run));
  ExecutorOptions& o = run.options.executor;
  for (const BackwardPrefetch backward :
       {BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone}) {
    for (const bool forward : {false, true}) {
      for (const int limit : {0, 1, 2, 3}) {
        o.backward_prefetch = backward;
        o.forward_prefetch = forward;
        o.limit_all_gathers = limit;
        for (o.reduce_buffers = 1; o.reduce_buffers <= 3; ++o.reduce_buffers) {
          o.communicators = 1 + (o.reduce_buffers + limit) % 2;
          ExpectSameBits(run, plain);
        }
      }
    }
  }
}

TEST(Bitwise, StrategyAndRecomputation) {
  for (const int world : {1, 2, 4}) {
    for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kUnsharded}) {
      TinyRun run;
      run.world = world;
      run.options.global_batch_size = 11;  // Two or more micro-batches at every world.
      run.options.executor.micro_batch_size = 1;
      run.options.executor.gradient_accumulation = accumulation;
      const TinyResult plain = Train(Plain(run));
      for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp}) {
        for (const Recompute recompute :
             {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          run.options.executor.sharding_strategy = strategy;
          run.options.executor.recompute = recompute;
          ExpectSameBits(run, plain);
        }
      }
    }
  }
}

// By way of memory for a part of each.
TEST(Bitwise, ActivationsOnADisk) {
  TinyRun run;
  run.world = 2;
  run.options.global_batch_size = 24;
  ExecutorOptions& o = run.options.executor;
  o.micro_batch_size = 6;
  o.spill_part = 1024;
  const TinyResult plain = Train(Plain(run));
  o.activation_offload = ActivationOffload::kSpill;
  o.cpu_offload.spill = ::testing::TempDir();
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    o.recompute = recompute;
    ExpectSameBits(run, plain);
  }
}

// Parameters on their way back to the device share memory with those of other units.
TEST(Bitwise, SkippedStepsOnTheHost) {
  for (const int world : {1, 2}) {
    TinyRun run;
    run.world = world;
    run.steps = 10;
    ExecutorOptions& o = run.options.executor;
    o.mixed_precision = {.param_dtype = DType::kFloat16};
    o.mixed_precision.scaler = {.init_scale = 0x1p22, .growth_interval = 1};
    o.spill_part = 2048;
    const TinyResult plain = Train(Plain(run));
    const auto skipped =
        std::ranges::count_if(plain.grad_norms, [](float x) { return !std::isfinite(x); });
    EXPECT_GT(skipped, 1);
    EXPECT_LT(skipped, run.steps - 1);
    for (const FsdpOptions::CpuOffload& offload : Offloads()) {
      o.cpu_offload = offload;
      ExpectSameBits(run, plain);
    }
  }
}

TEST(Bitwise, AgainAndAgain) {
  TinyRun run;
  run.world = 4;
  const TinyResult first = Train(run);
  for (int i = 0; i < 8; ++i) ExpectSameBits(run, first);
}

// Hosts numbered in turns, and in no order at all.
TEST(Bitwise, NumbersOfRanksDoNotCount) {
  TinyRun run;
  run.world = 6;
  run.options.executor.sharding_strategy = Strategy::kHybridShard;
  run.options.executor.shard_size = 2;
  run.options.executor.micro_batch_size = 1;
  run.steps = 16;  // Few sums of six losses depend on their order.
  const TinyResult plain = Train(Plain(run));
  for (const RunRanks ranks : {RunThreadRanks, RunProcessRanks}) {
    run.ranks = ranks;
    for (const std::vector<int>& numbers : {Interleaved(6, 2), {0, 5, 3, 1, 4, 2}}) {
      run.ranks_by_position = numbers;
      ExpectSameBits(run, plain);
    }
  }
}

TEST(Bitwise, ThreadsAndProcesses) {
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    for (const int world : {1, 2, 3, 4}) {
      TinyRun run;
      run.world = world;
      run.options.executor.sharding_strategy = strategy;
      const TinyResult threads = Train(run);
      run.ranks = RunProcessRanks;
      ExpectSameBits(run, threads);
    }
  }
}

// The moves that rounding may cause: a run on one rank, and how far it moves when the samples of
// each batch come in another order. That is the same mean, summed in other groups, as another world
// size is; so 4 times the largest move over 8 orders is accepted, and 1e-7 of the norm, as of the
// reference (tools/reference/README.md). A loss or a norm may not have moved by luck; but it is a
// sum of positive float32 numbers, one a micro-batch or unit and rank, so each addition, and the
// two products around it, may cost it 2^-24 of itself, on either side.
class Rounding {
 public:
  explicit Rounding(TinyRun run)
      : samples_(run.options.global_batch_size),
        rows_(run.options.executor.micro_batch_size),
        units_(1 + run.config.num_hidden_layers) {
    run.world = 1;
    run.ranks = RunThreadRanks;
    run.options.executor.sharding_strategy = Strategy::kFullShard;
    one_ = Train(run);
    const TinyRun::Sample sample = SampleOf(run);
    for (int order = 1; order <= 8; ++order) {
      TinyRun shuffled = run;
      const int64_t n = run.options.global_batch_size;
      shuffled.sample = [sample, order, n](int64_t step, int64_t index, std::span<int32_t> tokens,
                                           std::span<float> weights) {
        const int64_t turned = (index + order) % n;  // And every other order backwards.
        sample(step, order % 2 ? n - 1 - turned : turned, tokens, weights);
      };
      const TinyResult other = Train(shuffled);
      Visit(one_, other, [&](const std::string& name, double move, double) {
        double& largest = moves_[name];
        largest = std::max(largest, move);
      });
    }
  }

  const TinyResult& one() const { return one_; }

  void ExpectAgrees(const TinyRun& run) {
    const TinyResult ours = Train(run);
    EXPECT_EQ(ours.losses.size(), one_.losses.size());
    EXPECT_EQ(ours.parameters.size(), one_.parameters.size());
    const double additions = Additions(1) + Additions(run.world);
    Visit(one_, ours, [&](const std::string& name, double difference, double norm) {
      const bool number = name.find(' ') == std::string::npos;
      const double share = number ? std::ldexp(additions, -24) : 1e-7;
      const double accepted = 4 * moves_.at(name) + share * norm;
      EXPECT_LE(difference, accepted) << name << "\n" << Describe(run);
      worst_ = std::max(worst_, difference / accepted);
    });
  }
  ~Rounding() { std::printf("worst: %.3f of what is accepted\n", worst_); }

 private:
  static double Distance(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double d = static_cast<double>(a[i]) - (b.empty() ? 0.0 : static_cast<double>(b[i]));
      sum += d * d;
    }
    return std::sqrt(sum);
  }

  double Additions(int world) const {
    const int64_t wave = world * rows_;
    return static_cast<double>((samples_ + wave - 1) / wave + units_ + world + 2);
  }

  // visit(name, difference, norm), where only names of tensors have a blank. The norm of a gradient
  // is that of all of them; so is that of parameters, whose differences are those of gradients.
  template <typename Visitor>
  static void Visit(const TinyResult& a, const TinyResult& b, const Visitor& visit) {
    const auto scalars = [&](const char* name, const std::vector<float>& x,
                             const std::vector<float>& y) {
      double move = 0;  // Differences in the weights stay: the largest so far.
      for (size_t i = 0; i < x.size(); ++i) {
        move = std::max(move, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
        visit(name + std::to_string(i), move, std::abs(x[i]));
      }
    };
    scalars("loss", a.losses, b.losses);
    scalars("grad_norm", a.grad_norms, b.grad_norms);
    scalars("eval_loss", {a.eval_loss}, {b.eval_loss});
    const auto tensors = [&](const char* kind, const Tensors& x, const Tensors& y) {
      double squares = 0;
      for (const auto& [name, values] : x) squares += std::pow(Distance(values, {}), 2);
      for (const auto& [name, values] : x) {
        visit(kind + name, Distance(values, y.at(name)), std::sqrt(squares));
      }
    };
    tensors("gradient ", a.gradients, b.gradients);
    tensors("parameter ", a.parameters, b.parameters);
  }

  const int64_t samples_, rows_, units_;
  TinyResult one_;
  std::map<std::string, double> moves_;
  double worst_ = 0;
};

void ExpectWorldsAgree(TinyRun run, std::initializer_list<int> worlds) {
  Rounding rounding(run);
  ASSERT_GT(rounding.one().grad_norms.at(0), 0.01);
  for (const int world : worlds) {
    for (const Strategy strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kUnsharded}) {
        run.world = world;
        run.options.executor.sharding_strategy = strategy;
        run.options.executor.gradient_accumulation = accumulation;
        rounding.ExpectAgrees(run);
      }
    }
  }
}

TEST(Rounding, GroupsAgreeWithOneRank) {
  for (const float max_norm : {0.0f, 1.0f}) {
    TinyRun run;
    run.options.global_batch_size = 13;
    run.options.executor.micro_batch_size = 1;
    run.options.executor.max_norm = max_norm;
    Rounding rounding(run);
    for (const auto& [world, shards] : {std::pair{4, 2}, {6, 2}, {6, 3}, {8, 4}}) {
      for (const Strategy strategy : {Strategy::kHybridShard, Strategy::kHybridShardGradOp}) {
        for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kUnsharded}) {
          run.world = world;
          run.options.executor.shard_size = shards;
          run.options.executor.sharding_strategy = strategy;
          run.options.executor.gradient_accumulation = accumulation;
          rounding.ExpectAgrees(run);
        }
      }
    }
  }
}

TEST(Rounding, WorldsAgreeWithOneRank) { ExpectWorldsAgree({}, {1, 2, 3, 4}); }

// Activations of a sample are the same on any rank, so what worlds differ by is fp32's.
TEST(Rounding, WorldsAgreeInBFloat16) {
  TinyRun run;
  run.options.executor.mixed_precision.param_dtype = DType::kBFloat16;
  run.steps = 1;  // The first update moves what is rounded to bf16, and then all that follows.
  ExpectWorldsAgree(run, {2, 3, 4});
}

TEST(Rounding, WorldsAgreeWithOneRankWithoutClipping) {
  TinyRun run;  // Clipping would hide a factor in the gradient.
  run.options.executor.max_norm = 0;
  run.options.optimizer.momentum = 0;
  run.options.lr.lr = 0.05;
  ExpectWorldsAgree(run, {2, 3, 4});
}

TEST(Rounding, AnyBatchOnAnyWorld) {
  TinyRun run;
  run.options.global_batch_size = 5;
  run.options.executor.micro_batch_size = 3;
  run.steps = 2;
  ExpectWorldsAgree(run, {2, 3, 7});  // 7: more ranks than sequences, four have none.
  run.options.global_batch_size = 1;
  run.options.executor.micro_batch_size = 1;
  run.steps = 1;
  // One sequence has one order: what is left is 1e-7 of the norms.
  run.options.executor.max_norm = 0;
  ExpectWorldsAgree(run, {3});
}

TEST(Rounding, SequencesOfOneToken) {
  TinyRun run;
  run.options.executor.sample_length = 1;
  run.options.global_batch_size = 13;
  ExpectWorldsAgree(run, {2, 3});
}

// T is not T0, whatever the world.
TEST(Rounding, TargetsThatDoNotCount) {
  TinyRun run;
  const TinyRun::Sample all = SampleOf(run);
  run.sample = [all](int64_t step, int64_t sample, std::span<int32_t> tokens,
                     std::span<float> weights) {
    all(step, sample, tokens, weights);
    for (size_t t = 0; t < weights.size(); ++t) {
      if (sample == 2 || (t + sample) % 3 == 0) weights[t] = 0;
    }
  };
  ExpectWorldsAgree(run, {2, 4});
}

// The embedding and the head in the root or units of their own. The squares of the norm are added
// in chunks of a unit, so the norm agrees to rounding; nothing is clipped by it here.
TEST(Bitwise, OutsideTheBlocks) {
  TinyRun run;
  run.config.tie_word_embeddings = false;
  run.options.global_batch_size = 11;
  ExecutorOptions& o = run.options.executor;
  o.micro_batch_size = 1;
  o.max_norm = 0;
  run.options.optimizer.kind = OptimizerOptions::Kind::kAdamW;
  run.options.lr.lr = 0.01;
  for (const int world : {1, 4}) {
    for (const Strategy strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kHybridShard,
          Strategy::kHybridShardGradOp, Strategy::kNoShard}) {
      for (int bits = 0; bits < 8; ++bits) {
        const bool drawn =
            (bits + 2 * static_cast<int>(strategy) + world) % 5 == static_cast<int>(Part(5));
        if (!drawn && !Everything()) continue;
        run.world = world;
        o.sharding_strategy = strategy;
        if (IsHybrid(strategy)) o.shard_size = world / 2 + world % 2;
        o.gradient_accumulation = bits & 1 ? Accumulation::kUnsharded : Accumulation::kSharded;
        o.recompute = bits & 1 ? Recompute::kFull : Recompute::kNone;
        o.limiter = bits & 2 ? FsdpOptions::Limiter::kHost : FsdpOptions::Limiter::kDevice;
        o.buffers = bits & 2 ? FsdpOptions::Buffers::kCaching : FsdpOptions::Buffers::kSlots;
        o.mixed_precision.param_dtype = bits & 4 ? DType::kBFloat16 : DType::kFloat32;
        o.auto_wrap.outside = WrapPolicy::Outside::kUnits;
        TinyResult units = Train(run);
        o.auto_wrap.outside = WrapPolicy::Outside::kRoot;
        const TinyResult root = Train(run);
        for (size_t i = 0; i < root.grad_norms.size(); ++i) {
          EXPECT_NEAR(root.grad_norms[i], units.grad_norms[i], 1e-6 * units.grad_norms[i]);
        }
        units.grad_norms = root.grad_norms;
        EXPECT_EQ(FirstDifference(root, units), "") << Describe(run);
        o.shard_size.reset();
      }
    }
  }
}

TEST(Rounding, OtherWraps) {
  TinyRun run;
  run.config.tie_word_embeddings = false;
  for (const WrapPolicy wrap : {WrapPolicy{AutoWrap::kSize, 6000}, WrapPolicy{AutoWrap::kNone, 0},
                                WrapPolicy{.outside = WrapPolicy::Outside::kRoot}}) {
    run.options.executor.auto_wrap = wrap;
    ExpectWorldsAgree(run, {1, 3});
  }
}

// Large enough for matrix products to be split between threads.
TEST(Rounding, ComputeThreads) {
  TinyRun run;
  run.config.hidden_size = 64;
  run.config.intermediate_size = 256;
  run.config.num_attention_heads = 4;
  run.config.max_position_embeddings = 48;
  run.options.executor.sample_length = 48;
  Rounding rounding(run);
  for (const int threads : {2, 3}) {
    run.options.executor.threads = threads;
    run.world = 1;
    rounding.ExpectAgrees(run);
    const TinyResult first = Train(run);
    for (int i = 0; i < 3; ++i) ExpectSameBits(run, first);
    run.world = 2;
    rounding.ExpectAgrees(run);
  }
}

TEST(InitialWeights, DoNotDependOnTheWorld) {
  TinyRun run;
  run.steps = 1;
  const Tensors one = Train(run).initial;
  EXPECT_EQ(one.size(), 4 + 12u * run.config.num_hidden_layers);
  for (const int world : {1, 2, 3, 4, 5}) {
    for (const Strategy strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      for (const AutoWrap wrap : {AutoWrap::kTransformerBlock, AutoWrap::kSize, AutoWrap::kNone}) {
        run.world = world;
        run.options.executor.sharding_strategy = strategy;
        run.options.executor.auto_wrap = {wrap, 6000};
        EXPECT_TRUE(Train(run).initial == one) << Describe(run);
      }
    }
  }
}

// Threads share the filling; their number is no part of the values either.
TEST(InitialWeights, DoNotDependOnThreads) {
  TinyRun run;
  run.steps = 1;
  const Tensors one = Train(run).initial;
  run.options.executor.threads = 3;
  run.world = 2;
  EXPECT_TRUE(Train(run).initial == one);
}

TEST(InitialWeights, FollowTheSeed) {
  TinyRun run;
  run.steps = 1;
  run.initial = [&](const Parameter& p, int64_t begin, std::span<float> values) {
    FillInitial(p, run.seed, begin, values);
  };
  const Tensors one = Train(run).initial;
  run.seed = 8;
  const Tensors other = Train(run).initial;
  for (const auto& [name, values] : one) {
    const bool random = name.ends_with("weight") && name.find("ln_") == std::string::npos;
    EXPECT_EQ(values != other.at(name), random) << name;
    for (const auto& [name2, values2] : one) {  // Nor do two parameters share theirs.
      if (random && name != name2) {
        EXPECT_NE(values[1], values2[1]) << name << " " << name2;
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::testing
