// The settings that must not change a bit, and those whose runs agree to rounding.
#ifndef FSDP_TRAIN_TESTS_TRAINER_ENGINE_SETTINGS_H_
#define FSDP_TRAIN_TESTS_TRAINER_ENGINE_SETTINGS_H_

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/everything.h"
#include "tests/testing/pairwise.h"
#include "tests/testing/tiny_run.h"

namespace fsdp::testing {

constexpr uint64_t kPairwiseSeed = 2304;

inline std::string Describe(const TinyRun& run) {
  const ExecutorOptions& o = run.options.executor;
  std::ostringstream out;
  out << "world " << run.world << (run.ranks_by_position.empty() ? "" : ", renumbered,")
      << " params " << Name(o.mixed_precision.param_dtype) << " but "
      << o.mixed_precision.keep_fp32.size() << " grads " << Name(o.mixed_precision.grad_dtype)
      << " reduced " << Name(o.mixed_precision.reduce_dtype) << " masters "
      << Name(o.mixed_precision.master_dtype) << " cast "
      << static_cast<int>(o.mixed_precision.cast) << " shards " << o.shard_size.value_or(0)
      << " kept " << o.reshard_after_forward.value_or(0) << " strategy "
      << static_cast<int>(o.sharding_strategy) << " wrap " << static_cast<int>(o.auto_wrap.policy)
      << " outside " << static_cast<int>(o.auto_wrap.outside) << " tied "
      << run.config.tie_word_embeddings << " forward_prefetch " << o.forward_prefetch
      << " backward_prefetch " << static_cast<int>(o.backward_prefetch) << " limit "
      << o.limit_all_gathers << " reduce_buffers " << o.reduce_buffers << " buffers "
      << static_cast<int>(o.buffers) << " limiter " << static_cast<int>(o.limiter) << " concat "
      << o.concat_gradients << " communicators " << o.communicators << " accumulation "
      << static_cast<int>(o.gradient_accumulation) << " recompute " << static_cast<int>(o.recompute)
      << " poison " << o.poison << " check " << run.check << " optimizer "
      << static_cast<int>(run.options.optimizer.kind) << " on the host " << o.cpu_offload.optimizer
      << " but " << o.cpu_offload.optimizer_share << " with params " << o.cpu_offload.params
      << " spilled " << o.cpu_offload.spill.has_value() << " gathers quantised "
      << static_cast<int>(o.quantize.gather) << " and reductions "
      << static_cast<int>(o.quantize.reduce) << " inside " << o.inside << " and activations "
      << static_cast<int>(o.activation_offload) << " processes " << (run.ranks == RunProcessRanks);
  return out.str();
}

// Ranks of `world` hosts of `local` each that are numbered in turns: 0, hosts, 2 hosts, ..., 1, ...
inline std::vector<int> Interleaved(int world, int local) {
  const int hosts = world / local;
  std::vector<int> ranks;
  for (int p = 0; p < world; ++p) ranks.push_back(p / local + p % local * hosts);
  return ranks;
}

// Those in [least, most].
inline std::vector<int> Divisors(int n, int least, int most) {
  std::vector<int> divisors;
  for (int d = least; d <= most; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors;
}

// Dtypes of parameters, gradients and the wire; each of them is another computation.
inline std::vector<FsdpOptions::MixedPrecision> Precisions() {
  constexpr DType kBF16 = DType::kBFloat16, kF16 = DType::kFloat16;
  using Mixed = FsdpOptions::MixedPrecision;
  const std::vector<std::string> some{"*ln_*", "*wpe*"};
  return {
      Mixed{},
      Mixed{.param_dtype = kBF16},
      Mixed{.param_dtype = kBF16, .keep_fp32 = some},
      Mixed{.reduce_dtype = kBF16},
      Mixed{.param_dtype = kBF16, .grad_dtype = kBF16, .reduce_dtype = kBF16},
      Mixed{.param_dtype = kBF16, .grad_dtype = kBF16, .keep_fp32 = some},
      Mixed{
          .param_dtype = kBF16, .grad_dtype = kBF16, .reduce_dtype = kBF16, .master_dtype = kBF16},
      Mixed{.param_dtype = kF16, .grad_dtype = kF16, .reduce_dtype = kF16},
      Mixed{.param_dtype = kF16, .reduce_dtype = kF16, .keep_fp32 = some}};
}

// Each unit's update on the host, or every other one's, parameters there or not, and on a disk what
// can be.
inline std::vector<FsdpOptions::CpuOffload> Offloads() {
  using Offload = FsdpOptions::CpuOffload;
  return {
      Offload{},
      Offload{.optimizer = true},
      Offload{.params = true, .optimizer = true, .threads = 2},
      Offload{.optimizer = true, .optimizer_share = 0.5},
      Offload{.params = true, .optimizer = true, .optimizer_share = 0.5},
      Offload{.optimizer = true, .spill = ::testing::TempDir()},
      Offload{.params = true, .optimizer = true, .spill = ::testing::TempDir(), .spill_ahead = 0},
      Offload{.optimizer = true,
              .optimizer_share = 0.5,
              .spill = ::testing::TempDir(),
              .spill_ahead = 1}};
}

// Under AddressSanitizer, where the code counts and not the bits, one run in three; one in four
// under ThreadSanitizer, which takes eight times as long.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kRunsApart = 3;
#elif defined(__SANITIZE_THREAD__)
constexpr size_t kRunsApart = 4;
#else
constexpr size_t kRunsApart = 1;
#endif

// For a set that another test runs, too.
inline size_t RunsApartAgain() { return Everything() ? kRunsApart : 3 * kRunsApart; }

// A covering set of all settings together, or one run in `apart` of it.
inline std::vector<TinyRun> PairwiseRuns(size_t apart = kRunsApart) {
  std::vector<TinyRun> runs;
  size_t rows = 0;
  for (const std::vector<int>& row :
       CoverPairs({6, 5, 3, 2, 3, 4, 3, 2, 2, 3, 2, 2, 2, 2, 4, 2, 3, 9, 2, 8, 3, 3, 3, 3},
                  kPairwiseSeed)) {
    if (rows++ % apart != ::fsdp::testing::Part(apart)) continue;
    TinyRun run;
    ExecutorOptions& o = run.options.executor;
    size_t i = 0;
    run.world = (const int[]){1, 2, 3, 4, 6, 8}[row[i++]];
    o.sharding_strategy = static_cast<Strategy>(row[i++]);
    o.auto_wrap = {static_cast<AutoWrap>(row[i++]), 6000};  // kSize joins two of the three blocks.
    o.forward_prefetch = row[i++] != 0;
    o.backward_prefetch = static_cast<BackwardPrefetch>(row[i++]);
    o.limit_all_gathers = row[i++];
    o.reduce_buffers = 1 + row[i++];
    o.communicators = 1 + row[i++];
    o.gradient_accumulation = static_cast<Accumulation>(row[i++]);
    o.recompute = static_cast<Recompute>(row[i++]);
    o.poison = row[i++] != 0;
    run.check = row[i++] != 0;
    if (row[i++] != 0) {
      run.options.optimizer.kind = OptimizerOptions::Kind::kAdamW;
      run.options.lr.lr = 0.01;
    }
    run.ranks = row[i++] != 0 ? RunProcessRanks : RunThreadRanks;
    const int nth = row[i++], renumbered = row[i++], secondary = row[i++];
    o.mixed_precision = Precisions()[row[i++]];
    o.mixed_precision.cast = static_cast<FsdpOptions::MixedPrecision::CastIn>(row[i++]);
    o.cpu_offload = Offloads()[row[i++]];
    o.spill_part = 2048;  // Several of a shard.
    o.activation_offload = static_cast<ActivationOffload>(row[i++]);
    if (o.activation_offload == ActivationOffload::kSpill) {
      o.cpu_offload.spill = ::testing::TempDir();
    }
    // Some matrices are that large, and others not.
    using Quantize = FsdpOptions::Quantize;
    o.quantize = {.gather = static_cast<Quantize::Gather>(row[i++]), .block = 64, .min_size = 700};
    const auto reduce = static_cast<Quantize::Reduce>(row[i++]);
    if (o.mixed_precision.reduce_dtype == DType::kFloat32) o.quantize.reduce = reduce;
    const int outside = row[i++];  // A tied embedding in the root; untied, units; and there, too.
    run.config.tie_word_embeddings = outside == 0;
    if (outside == 2) o.auto_wrap.outside = WrapPolicy::Outside::kRoot;
    // State in bf16 where nothing else says that it is rounded by element, and not by shard.
    if (o.mixed_precision.master_dtype != DType::kFloat32) o.state_dtype = DType::kBFloat16;
    int shards = run.world;
    if (IsHybrid(o.sharding_strategy)) {
      const std::vector<int> divisors = Divisors(run.world, 1, run.world);
      o.shard_size = shards = divisors[nth % divisors.size()];
      if (renumbered != 0) run.ranks_by_position = Interleaved(run.world, shards);
    }
    const bool freed = o.sharding_strategy == Strategy::kFullShard ||
                       o.sharding_strategy == Strategy::kHybridShard;
    const std::vector<int> parts = Divisors(shards, 2, shards - 1);
    if (nth % 2 == 0 && !parts.empty() && o.sharding_strategy != Strategy::kNoShard) {
      o.inside = parts.front();  // Two hops.
    }
    if (freed && secondary > 0 && !parts.empty()) {
      o.reshard_after_forward = parts[secondary % parts.size()];
    }
    runs.push_back(run);
  }
  return runs;
}

// `run` with the settings that may not change a bit at their plainest.
inline TinyRun Plain(TinyRun run) {
  const ExecutorOptions given = run.options.executor;
  ExecutorOptions& o = run.options.executor;
  o = TinyRun::TinyOptions().executor;
  o.micro_batch_size = given.micro_batch_size;
  o.sample_length = given.sample_length;
  o.max_norm = given.max_norm;
  o.threads = given.threads;
  o.auto_wrap = given.auto_wrap;
  o.mixed_precision = given.mixed_precision;
  o.state_dtype = given.state_dtype;
  o.mixed_precision.cast = FsdpOptions::MixedPrecision::CastIn::kOptimizer;
  o.gradient_accumulation = given.gradient_accumulation;
  o.quantize = given.quantize;
  o.inside = given.inside;
  o.sharding_strategy = Strategy::kShardGradOp;
  if (given.sharding_strategy == Strategy::kNoShard) o.sharding_strategy = Strategy::kNoShard;
  if (IsHybrid(given.sharding_strategy)) {  // With one shard, or all, it is as without groups.
    const int64_t shards = given.shard_size.value();
    if (shards == 1) o.sharding_strategy = Strategy::kNoShard;
    if (shards > 1 && shards < run.world) {
      o.sharding_strategy = Strategy::kHybridShardGradOp;
      o.shard_size = shards;
    }
  }
  run.ranks_by_position.clear();
  o.forward_prefetch = false;
  o.backward_prefetch = BackwardPrefetch::kNone;
  o.limit_all_gathers = 1;
  o.reduce_buffers = 1;
  o.communicators = 1;
  o.poison = false;
  run.check = true;
  run.park = false;
  run.ranks = RunThreadRanks;
  return run;
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_ENGINE_SETTINGS_H_
