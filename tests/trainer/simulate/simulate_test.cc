#include "trainer/simulate/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/error_of.h"
#include "trainer/core/errors.h"
#include "trainer/fsdp/step_position.h"
#include "trainer/loop/place.h"
#include "trainer/loop/resolve.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/simulate/step_floor.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

constexpr char kRecipe[] =
    "model: {family: llama, hidden_size: 64, intermediate_size: 160, num_hidden_layers: 3,\n"
    "  num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16, vocab_size: 301,\n"
    "  max_position_embeddings: 64}\n"
    "data: {train: {source: synthetic}, valid: null, seq_len: 32}\n"
    "train: {micro_batch_size: 2, global_batch_size: 16}\n";

// Its numbers make kernels, links and the host take times of one size in a step of that recipe.
Hardware Cluster() {
  Hardware hardware;
  hardware.name = "a cluster";
  hardware.memory = int64_t{64} << 30;
  hardware.bf16_flops = 2e11;
  hardware.fp32_flops = 1e11;
  hardware.product_share = 0.8;
  hardware.multiprocessors = 4;
  hardware.attention_forward_flops = hardware.attention_backward_flops = 1e11;
  hardware.copy_bytes_per_s = 2e10;
  hardware.launch_s = 2e-6;
  hardware.kernels_beside_collectives = 0.75;
  hardware.collectives_beside_kernels = 0.875;
  hardware.host_link_bytes_per_s = 1e9;
  hardware.host_copy_bytes_per_s = 4e9;
  hardware.host = {.operation_s = 1e-6,
                   .event_s = 2e-7,
                   .wait_s = 3e-7,
                   .allocation_s = 1e-7,
                   .segment_s = 1e-4,
                   .segment_s_per_byte = 1e-11};
  hardware.network = NetworkRates{.ranks_per_host = 2,
                                  .collective_s = 5e-6,
                                  .inside = {.ring_bytes_per_s = 4e9,
                                             .ring_step_s = 3e-6,
                                             .all_to_all_bytes_per_s = 4e9,
                                             .all_to_all_step_s = 3e-6,
                                             .ramp_bytes = 1000},
                                  .between = {.ring_bytes_per_s = 2e9,
                                              .ring_step_s = 1e-5,
                                              .all_to_all_bytes_per_s = 2e9,
                                              .all_to_all_step_s = 1e-5,
                                              .ramp_bytes = 2000}};
  return hardware;
}

struct Job {
  std::vector<std::string> overrides = {};
  int world = 4, local_world = 2;
};

ResolvedRun Resolved(const Job& job, const Hardware& hardware) {
  const Recipe recipe = ParseRecipe({{"test.yaml", kRecipe}}, job.overrides);
  return Resolve(recipe, PlaceToPlan(recipe, job.world, job.local_world, hardware));
}

Simulation Simulated(const Job& job, const Hardware& hardware,
                     const SimulateOptions& options = {}) {
  return Simulate(Resolved(job, hardware), hardware, options);
}

// Options that multiply: one of each row.
Job RandomJob(std::mt19937_64& random) {
  const auto pick = [&](const std::vector<std::string>& values) {
    return values[random() % values.size()];
  };
  Job job;
  job.world = 1 << random() % 4;
  job.local_world = std::min(job.world, 1 << static_cast<int>(random() % 3));
  std::vector<std::string> strategies = {"full_shard", "shard_grad_op"};
  if (job.world == 1) strategies = {"no_shard"};
  if (job.world > 2) strategies.insert(strategies.end(), {"hybrid_shard", "no_shard"});
  const std::string strategy = pick(strategies);
  job.overrides = {"fsdp.sharding_strategy=" + strategy,
                   "fsdp.backward_prefetch=" + pick({"pre", "post", "none"}),
                   "fsdp.limit_all_gathers=" + pick({"0", "1", "2"}),
                   "fsdp.communicators=" + pick({"1", "2"}),
                   "train.activation_checkpointing=" + pick({"none", "full", "selective"}),
                   "train.micro_batch_size=" + pick({"1", "2"})};
  if (strategy == "hybrid_shard") job.overrides.push_back("fsdp.shard_size=2");
  const std::string memory = pick({"slots", "caching", "offload"});
  if (memory == "caching") {
    job.overrides.insert(job.overrides.end(), {"fsdp.buffers=caching", "fsdp.limiter=host"});
  } else if (memory == "offload") {
    job.overrides.push_back("fsdp.cpu_offload={optimizer: true}");
  }
  if (random() % 2 == 0) {
    job.overrides.push_back("fsdp.mixed_precision={param_dtype: bf16, reduce_dtype: bf16}");
  }
  return job;
}

std::string Describe(const Job& job) {
  std::string text = std::to_string(job.world) + " ranks, " + std::to_string(job.local_world);
  for (const std::string& override : job.overrides) text += " " + override;
  return text;
}

class SimulatedJobs : public ::testing::TestWithParam<int> {
 protected:
  SimulatedJobs() : random_(GetParam()), job_(RandomJob(random_)) {}

  std::mt19937_64 random_;
  const Job job_;
};

TEST_P(SimulatedJobs, AStepIsAsLongAsItsPartsAndNoShorterThanItsFloor) {
  SCOPED_TRACE(Describe(job_));
  const Hardware hardware = Cluster();
  const ResolvedRun run = Resolved(job_, hardware);
  const Simulation simulation = Simulate(run, hardware);
  const StepEstimate estimate = EstimateOf(run, hardware, simulation);
  EXPECT_GT(simulation.step_s, 0);
  double parts = 0;
  for (const auto& [name, seconds] : estimate.breakdown) {
    EXPECT_GE(seconds, 0) << name;
    parts += seconds;
  }
  EXPECT_NEAR(parts, simulation.step_s, 1e-9 * simulation.step_s);
  EXPECT_GE(simulation.step_s, estimate.floor_s * (1 - 1e-9));
  // A step's inputs may be there before the step behind it ends.
  EXPECT_GE(simulation.step_s, simulation.device_s * 0.99);
  if (job_.world == 1) {
    EXPECT_EQ(simulation.link_s, 0);
    EXPECT_EQ(estimate.exposed_s, 0);
  }
  EXPECT_GE(estimate.hardware_tflops_per_device, estimate.tflops_per_device * (1 - 1e-9));
}

TEST_P(SimulatedJobs, AreTheSameEveryTime) {
  SCOPED_TRACE(Describe(job_));
  const Hardware hardware = Cluster();
  ResolvedRun a = Resolved(job_, hardware), b = Resolved(job_, hardware);
  const auto text = [&](ResolvedRun& run) {
    const auto simulation = SimulateAndPlan(run, hardware, {});
    return PlanToJson(run.plan, EstimateOf(run, hardware, *simulation));
  };
  EXPECT_EQ(text(a), text(b));
}

// A better machine is no slower. Where streams share, an order may turn out worse.
TEST_P(SimulatedJobs, ABetterMachineIsNotSlower) {
  SCOPED_TRACE(Describe(job_));
  const struct {
    const char* name;
    std::function<void(Hardware&)> better;
  } kBetter[] = {
      {"FLOP/s", [](Hardware& h) { *h.fp32_flops *= 1.5, *h.bf16_flops *= 1.5; }},
      {"bytes", [](Hardware& h) { *h.copy_bytes_per_s *= 1.5; }},
      {"launches", [](Hardware& h) { h.launch_s = 0; }},
      {"reached", [](Hardware& h) { h.unfused_bytes = 0.5; }},
      {"overlap", [](Hardware& h) { h.kernels_beside_collectives = 1; }},
      {"links",
       [](Hardware& h) {
         *h.network->inside.ring_bytes_per_s *= 2, *h.network->between.ring_bytes_per_s *= 2;
       }},
      {"steps",
       [](Hardware& h) {
         *h.network->inside.ring_step_s = 0, *h.network->between.ring_step_s = 0;
       }},
      {"host", [](Hardware& h) { h.host = {}; }},
      {"host link", [](Hardware& h) { *h.host_link_bytes_per_s *= 2; }},
      {"host copy", [](Hardware& h) { *h.host_copy_bytes_per_s *= 2; }},
  };
  const double step = Simulated(job_, Cluster()).step_s;
  for (const auto& [name, better] : kBetter) {
    Hardware hardware = Cluster();
    better(hardware);
    EXPECT_LE(Simulated(job_, hardware).step_s, step * 1.01) << name;
  }
  Hardware worse = Cluster();
  worse.reached = 0.5;
  EXPECT_GE(Simulated(job_, worse).step_s, step * 0.99);
}

INSTANTIATE_TEST_SUITE_P(Random, SimulatedJobs, ::testing::Range(0, 24));

TEST(SimulateTest, PrefetchNeverNeedsLessMemory) {
  for (const std::string strategy : {"full_shard", "shard_grad_op"}) {
    int64_t before = 0;
    for (const std::string prefetch : {"none", "pre"}) {
      ResolvedRun run = Resolved({{"fsdp.sharding_strategy=" + strategy, "fsdp.buffers=caching",
                                   "fsdp.limiter=host", "fsdp.backward_prefetch=" + prefetch}},
                                 Cluster());
      ASSERT_TRUE(SimulateAndPlan(run, Cluster(), {}));
      EXPECT_GE(run.plan.statistics().allocated.peak, before) << strategy << " " << prefetch;
      before = run.plan.statistics().allocated.peak;
    }
  }
}

// A rank that computes twice as slowly holds all others up; what it does not compute is as it was.
TEST(SimulateTest, OthersWaitForTheSlowest) {
  const Job job;
  const Simulation even = Simulated(job, Cluster());
  const Simulation held = Simulated(job, Cluster(), {.slowest = 2});
  Hardware slow = Cluster();
  EXPECT_GT(held.step_s, even.step_s + 0.5 * even.device_s);
  EXPECT_LT(held.step_s, 2.1 * even.step_s);
  EXPECT_GT(held.times.communication, even.times.communication + 0.4 * even.device_s);
  EXPECT_LT(held.times.forward, 1.1 * even.times.forward);
  // A rank alone waits for nobody.
  const Job alone{{"fsdp.sharding_strategy=no_shard"}, 1, 1};
  EXPECT_GT(Simulated(alone, Cluster(), {.slowest = 2}).step_s,
            1.5 * Simulated(alone, Cluster()).step_s);
}

TEST(SimulateTest, TheTraceIsOfOneStep) {
  const Simulation simulation = Simulated({}, Cluster(), {.trace = true});
  double busy = 0;
  bool host = false, gather = false, part = false;
  for (const Span& span : simulation.spans) {
    EXPECT_GE(span.begin_s, 0);
    EXPECT_LE(span.end_s, simulation.step_s * (1 + 1e-9));
    EXPECT_LE(span.begin_s, span.end_s);
    host = host || span.stream == "host";
    gather = gather || (span.stream == "gather" && span.name == "all_gather");
    if (const auto at = simulation.parts.find(span.tag); at != simulation.parts.end()) {
      part = part || at->second.pass == "backward";
    }
    if (span.stream == "compute" && span.name != "wait") busy += span.end_s - span.begin_s;
  }
  EXPECT_TRUE(host && gather && part);
  EXPECT_GT(busy, 0.2 * simulation.step_s);
  EXPECT_TRUE(Simulated({}, Cluster()).spans.empty());
}

std::string MistakeOf(const Job& job, const Hardware& hardware) {
  return testing::ErrorOf<ConfigError>([&] { Simulated(job, hardware); }, "none");
}

TEST(SimulateTest, WhatTheFileLacksIsNamed) {
  Hardware hardware = Cluster();
  hardware.bf16_flops.reset();
  const Job halves{{"fsdp.mixed_precision={param_dtype: bf16, reduce_dtype: bf16}"}};
  EXPECT_EQ(MistakeOf({}, hardware), "none");
  EXPECT_THAT(MistakeOf(halves, hardware), HasSubstr("a cluster has no bf16_flops"));
  hardware = Cluster();
  hardware.network.reset();
  EXPECT_THAT(MistakeOf({}, hardware), HasSubstr("has no network, and the job has 4 ranks"));
  hardware = Cluster();
  hardware.host_link_bytes_per_s.reset();
  EXPECT_THAT(MistakeOf({{"fsdp.cpu_offload={optimizer: true}"}}, hardware),
              HasSubstr("has no host_link_bytes_per_s"));
}

// On a device that is nearly full the allocator gives back what it keeps, and the step is slower.
TEST(SimulateTest, RetriesTakeTime) {
  Job job{{"fsdp.buffers=caching", "fsdp.limiter=host", "fsdp.limit_all_gathers=0",
           "model.num_hidden_layers=8", "model.hidden_size=256"}};
  ResolvedRun free = Resolved(job, Cluster());
  const auto roomy = SimulateAndPlan(free, Cluster(), {});
  ASSERT_TRUE(roomy);
  EXPECT_EQ(free.plan.statistics().retries, 0);
  Hardware machine = Cluster();
  machine.host.segment_s = 1e-3;
  const int64_t reserved = free.plan.statistics().reserved.peak;
  const int64_t allocated = free.plan.statistics().allocated.peak;
  job.overrides.emplace_back();
  bool slower = false;
  for (int part = 1; part < 8 && !slower; ++part) {  // Less and less room for what is kept.
    const int64_t limit = reserved - (reserved - allocated) * part / 8;
    job.overrides.back() = "run.memory_limit=" + std::to_string(limit);
    ResolvedRun full = Resolved(job, machine);
    const auto tight = SimulateAndPlan(full, machine, {});
    if (!tight) break;
    EXPECT_TRUE(full.plan.fits());
    EXPECT_LE(full.plan.statistics().reserved.peak, limit);
    slower = full.plan.statistics().retries > 0 && tight->step_s > 1.1 * roomy->step_s;
  }
  EXPECT_TRUE(slower);
  // A job that does not fit at any time has no plan.
  job.overrides.back() = "run.memory_limit=" + std::to_string(allocated / 2);
  ResolvedRun none = Resolved(job, machine);
  EXPECT_FALSE(SimulateAndPlan(none, machine, {}));
  EXPECT_FALSE(none.plan.fits());
}

}  // namespace
}  // namespace fsdp
