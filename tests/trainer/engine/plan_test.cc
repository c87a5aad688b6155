// Limits that a plan is held against, on made-up /proc and /sys trees.
#include "trainer/engine/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "models/gpt2/config.h"
#include "models/llama/config.h"
#include "models/shape.h"
#include "tests/testing/tiny_run.h"
#include "trainer/comm/hosts/hosts_communicator.h"
#include "trainer/comm/mesh_communicators.h"
#include "trainer/comm/shm/shm_communicator.h"
#include "trainer/core/errors.h"
#include "trainer/core/units.h"
#include "trainer/engine/plan_cures.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/ops/cpu/gemm/gemm.h"
#include "trainer/optim/muon.h"
#include "trainer/runtime/cpu/cpu_device.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing::TinyRun;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr char kGroup[] = "/sys/fs/cgroup/slurm/job_1";

class PlanTest : public ::testing::Test {
 protected:
  PlanTest() : model_(MakeModel(TinyRun::TinyConfig())) {
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal: 9000000 kB\nMemFree: 1000 kB\nMemAvailable: 4000000 kB\n");
    Write("/proc/self/status", "VmSize: 300000 kB\nVmRSS: 10000 kB\nVmData: 40000 kB\n");
    Write("/proc/self/cgroup", "0::/slurm/job_1/step_0\n");
  }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  RunPlan Plan(int world = 1) {
    return PlanRun(*model_, options_, world, world, {}, MemoryLimits(root_));
  }

  const std::string root_ = ::testing::TempDir() + "/plan";
  const std::shared_ptr<Model> model_;
  SessionOptions options_ = TinyRun::TinyOptions();
};

TEST_F(PlanTest, IsHeldAgainstWhatTheHostHasAvailable) {
  EXPECT_EQ(Plan().available->bytes, int64_t{4000000} << 10);
  EXPECT_EQ(Plan(4).available->bytes, int64_t{1000000} << 10);  // The ranks share it.
  EXPECT_TRUE(Plan().fits());
  EXPECT_GE(Plan().outside, 10000 << 10);
}

TEST_F(PlanTest, RanksOfOtherHostsShareNothingButAreReceivedFrom) {
  const MemoryLimits limits(root_);
  const RunPlan one = PlanRun(*model_, options_, 4, 4, {}, limits);
  const RunPlan two = PlanRun(*model_, options_, 4, 2, {}, limits);
  EXPECT_EQ(two.memory.bytes(), one.memory.bytes());
  EXPECT_EQ(two.available->bytes, 2 * one.available->bytes);
  EXPECT_EQ(two.outside - one.outside,
            options_.executor.communicators * (HostsBytesPerRank(4, 2) - ShmBytes(4) / 4));
}

int ThreadsNow() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

// A ceiling that the plan keeps below changes nothing; a byte less, and there is no plan.
TEST_F(PlanTest, PlanningEndsAtACeiling) {
  for (const auto buffers : {FsdpOptions::Buffers::kSlots, FsdpOptions::Buffers::kCaching}) {
    options_.executor.buffers = buffers;
    const bool caching = buffers == FsdpOptions::Buffers::kCaching;
    if (caching) options_.executor.limiter = FsdpOptions::Limiter::kHost;
    for (const DeviceType device : {DeviceType::kCpu, DeviceType::kCuda}) {
      const MemoryPlan plan = PlanMemory(*model_, options_, /*world=*/2, nullptr, device);
      const bool one_memory = device == DeviceType::kCpu;
      const int64_t most = one_memory ? plan.bytes() : plan.bytes(MemoryPlace::kDevice);
      const auto below = [&](int64_t bytes) {
        MemoryCeiling ceiling;
        (one_memory ? ceiling.all : ceiling.device) = bytes;
        return PlanMemory(*model_, options_, /*world=*/2, nullptr, device, ceiling);
      };
      EXPECT_EQ(below(most).bytes(), plan.bytes());
      // Slots: of what is there at a time the plan may waste some.
      EXPECT_THROW(below(caching ? most - 1 : most / 2), MemoryError);
    }
  }
}

// Those that the run has: the same program, counted from outside.
TEST_F(PlanTest, CountsTheThreadsOfItsStreams) {
  using Offload = FsdpOptions::CpuOffload;
  options_.snapshot = true;
  options_.executor.threads = 2;
  const std::string disk = ::testing::TempDir();
  for (const Offload& offload :
       {Offload{}, Offload{.optimizer = true}, Offload{.optimizer = true, .threads = 3},
        Offload{.optimizer = true, .spill = disk}}) {
    for (const ActivationOffload activations :
         {ActivationOffload::kNone, ActivationOffload::kHost}) {
      options_.executor.cpu_offload = offload;
      options_.executor.activation_offload = activations;
      const MemoryPlan plan = PlanMemory(*model_, options_, /*world=*/1);
      CpuDevice device;
      const auto memory = MakeAllocator(device, options_.executor, plan);
      const MeshCommunicators alone(Mesh(0, 1, 1), options_.executor.communicators, nullptr);
      const int before = ThreadsNow();
      const Session session(device, *memory, *model_, options_, alone);
      EXPECT_EQ(ThreadsNow() - before, plan.threads);
    }
  }
}

// On a GPU the host multiplies nothing.
TEST_F(PlanTest, CountsWhatEachThreadMultipliesIn) {
  const auto outside = [&](DeviceType device) {
    return PlanRun(*model_, options_, 1, 1, {.device = device}, MemoryLimits(root_)).outside;
  };
  const int64_t cpu = outside(DeviceType::kCpu), gpu = outside(DeviceType::kCuda);
  EXPECT_EQ(cpu - gpu, options_.executor.threads * kGemmBytesPerThread);
  options_.executor.threads += 2;
  EXPECT_EQ(outside(DeviceType::kCpu) - cpu, 2 * (kGemmBytesPerThread + kMiB));
  EXPECT_EQ(outside(DeviceType::kCuda) - gpu, 2 * kMiB);
}

// One of them is the data stream's.
TEST_F(PlanTest, CountsTheThreadsThatFillABatch) {
  const int64_t one = Plan().outside;
  options_.data_threads = 5;
  EXPECT_EQ(Plan().outside - one, 4 * kMiB);
}

// A communicator for each group of the mesh: replicas gather nothing.
TEST_F(PlanTest, CountsTheCommunicatorsThatThereWillBe) {
  const auto outside = [&] { return Plan(4).outside; };
  ASSERT_EQ(options_.executor.communicators, 2);
  const int64_t sharded = outside();
  options_.executor.sharding_strategy = Strategy::kNoShard;
  EXPECT_EQ(sharded - outside(), ShmBytes(4) / 4);
}

// Two hosts of two ranks: who shards on one shares its memory; of the replicas one is here.
TEST_F(PlanTest, HybridGroupsAreOnTheirHosts) {
  options_.executor.sharding_strategy = Strategy::kFullShard;
  const RunPlan full = PlanRun(*model_, options_, 4, 2, {}, MemoryLimits(root_));
  options_.executor.sharding_strategy = Strategy::kHybridShard;
  options_.executor.shard_size = 2;
  const RunPlan hybrid = PlanRun(*model_, options_, 4, 2, {}, MemoryLimits(root_));
  const int64_t stream = kMiB;
  EXPECT_EQ(hybrid.outside - full.outside, stream + 2 * ShmBytes(2) / 2 + HostsBytesPerRank(2, 1) +
                                               HostsBytesPerRank(4, 2) -
                                               2 * HostsBytesPerRank(4, 2));
}

// The bytes that each strategy moves, by the sizes of the layout alone.
TEST_F(PlanTest, BytesOfAStepAreThoseOfTheStrategy) {
  options_.executor.max_norm = 0;
  for (const auto& [world, shards] : {std::pair{4, 2}, {6, 3}, {6, 2}, {6, 1}, {6, 6}}) {
    for (const Strategy strategy : {Strategy::kHybridShard, Strategy::kHybridShardGradOp}) {
      for (const int micro_batches : {1, 3}) {
        options_.executor.sharding_strategy = strategy;
        options_.executor.shard_size = shards;
        options_.executor.micro_batches = micro_batches;
        const Layout layout = MakeLayout(ShapesOf(*model_), {}, shards);
        double root = 0, blocks = 0;  // Bytes of all ranks.
        for (size_t u = 0; u < layout.units.size(); ++u) {
          (u == 0 ? root : blocks) +=
              static_cast<double>(layout.GatheredBytes(static_cast<int>(u)));
        }
        const double share = (shards - 1.0) / shards;
        const bool twice = strategy == Strategy::kHybridShard;
        const double all = root + blocks;
        const double gathers = twice ? root + 2.0 * micro_batches * blocks : all;
        // In fp32, of rank 0: of its slice the sum, of the others its part.
        const auto all_reduced = [](int64_t n, int size) {
          const int64_t slice = n / size;
          return 4 * (n - slice + (size - 1) * slice);
        };
        int64_t summed = all_reduced(3, world);  // The scalars.
        for (const FlatParameter& flat : layout.flat_parameters) {
          summed += all_reduced(flat.shard_size, world / shards);
        }
        const StepTraffic traffic = Plan(world).traffic;
        EXPECT_DOUBLE_EQ(traffic.all_gather_bytes, share * gathers);
        EXPECT_DOUBLE_EQ(traffic.reduce_scatter_bytes, share * micro_batches * all);
        EXPECT_EQ(traffic.all_reduce_bytes, summed) << world << " " << shards;
      }
    }
  }
}

// Blocks are gathered twice a micro-batch, table and head once: backward does not read the one, and
// begins with the other.
TEST_F(PlanTest, AnUntiedTableAndHeadAreGatheredOnceAMicroBatch) {
  LlamaConfig config = TinyRun::TinyLlama();
  options_.executor.micro_batches = 3;
  const auto gathered = [&](int64_t vocab) {
    config.vocab_size = vocab;
    const auto model = MakeModel(config);
    return PlanRun(*model, options_, 2, 2, {}, MemoryLimits(root_)).traffic.all_gather_bytes;
  };
  const double table = 1024.0 * static_cast<double>(config.hidden_size) * 4;
  EXPECT_EQ(gathered(2048) - gathered(1024), 3 * 2 * table / 2);
}

// In the root both are gathered once a step, into memory of their own, beside the slots of blocks;
// so is their gradient.
TEST_F(PlanTest, TheRootHasAPlaceOfItsOwn) {
  LlamaConfig config = TinyRun::TinyLlama();
  options_.executor.auto_wrap.outside = WrapPolicy::Outside::kRoot;
  const auto model = MakeModel(config);
  const auto unsharded = [&] {
    const RunPlan plan = PlanRun(*model, options_, 2, 2, {}, MemoryLimits(root_));
    return plan.memory.bytes(MemoryKind::kUnsharded);
  };
  const Layout layout = LayoutFor(options_.executor, *model, 2);
  ASSERT_EQ(layout.units.size(), 3u);  // And two blocks, each in a slot.
  int64_t bytes = 0;
  for (int u = 0; u < 3; ++u) bytes += layout.GatheredBytes(u) + layout.GradientBytes(u);
  EXPECT_EQ(unsharded(), bytes);
  // A larger vocabulary makes the root alone larger, by table and head.
  options_.executor.micro_batches = 3;
  const auto gathered = [&](int64_t vocab) {
    config.vocab_size = vocab;
    const auto larger = MakeModel(config);
    return PlanRun(*larger, options_, 2, 2, {}, MemoryLimits(root_)).traffic.all_gather_bytes;
  };
  const double table = 1024.0 * static_cast<double>(config.hidden_size) * 4;
  EXPECT_EQ(gathered(2048) - gathered(1024), 2 * table / 2);
  // All of it is there at a time, of an allocator, too.
  options_.executor.micro_batches = 1;
  options_.executor.limiter = FsdpOptions::Limiter::kHost;
  options_.executor.buffers = FsdpOptions::Buffers::kCaching;
  EXPECT_GE(unsharded(), layout.GatheredBytes(0) + layout.GradientBytes(0));
}

TEST_F(PlanTest, ARootThatDoesNotFitMayBeUnits) {
  LlamaConfig config = TinyRun::TinyLlama();
  config.vocab_size = 4096;
  const auto model = MakeModel(config);
  const auto plan = [&] { return PlanRun(*model, options_, 2, 2, {}, MemoryLimits(root_)); };
  const int64_t units = plan().planned();
  options_.executor.auto_wrap.outside = WrapPolicy::Outside::kRoot;
  EXPECT_LT(units, plan().planned());
  options_.executor.memory_limit = units;
  try {
    RequireFit(*model, options_, plan(), {}, MemoryLimits(root_));
    FAIL() << "it fits";
  } catch (const MemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr(" fsdp.auto_wrap.outside: units: "));
  }
}

// Backward's gathers go over two of six ranks, which takes a third of the blocks to keep.
TEST_F(PlanTest, ASecondaryCopyIsALineOfThePlan) {
  options_.executor.micro_batches = 3;
  const RunPlan without = Plan(6);
  options_.executor.reshard_after_forward = 2;
  const RunPlan with = Plan(6);
  const Layout layout = MakeLayout(ShapesOf(*model_), {}, 6);
  int64_t blocks = 0;
  for (size_t u = 1; u < layout.units.size(); ++u) {
    blocks += layout.GatheredBytes(static_cast<int>(u));
  }
  EXPECT_EQ(without.memory.bytes(MemoryKind::kSecondary), 0);
  EXPECT_EQ(with.memory.bytes(MemoryKind::kSecondary), blocks / 2);
  EXPECT_EQ(with.memory.bytes() - without.memory.bytes(), blocks / 2);
  EXPECT_DOUBLE_EQ(without.traffic.all_gather_bytes - with.traffic.all_gather_bytes,
                   3.0 * static_cast<double>(blocks) * (5.0 / 6 - 1.0 / 2));
  EXPECT_THAT(PlanToText(with), HasSubstr("secondary"));
}

// The job's limit, two levels above the group that the process is in.
TEST_F(PlanTest, ControlGroupsLimitIt) {
  const RunPlan free = Plan();
  Write(std::string(kGroup) + "/memory.max", std::to_string(free.total() + kMiB) + "\n");
  Write(std::string(kGroup) + "/memory.current", std::to_string(kMiB) + "\n");
  EXPECT_TRUE(Plan().fits());
  Write(std::string(kGroup) + "/memory.current", std::to_string(kMiB + 1) + "\n");
  const RunPlan plan = Plan();
  EXPECT_FALSE(plan.fits());
  try {
    RequireFit(*model_, options_, plan, {}, MemoryLimits(root_));
    ADD_FAILURE() << "taken";
  } catch (const MemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("are available (memory.max of " + std::string(kGroup)));
  }
  // Nothing left is not the same as nothing known.
  Write(std::string(kGroup) + "/memory.max", "1\n");
  EXPECT_FALSE(Plan().fits());
}

// Memory of its own, and the host's beside it: for snapshots, batches and results.
TEST_F(PlanTest, AGpuHasMemoryOfItsOwn) {
  options_.snapshot = true;
  const RunPlan cpu = Plan();
  PlanTarget target{.device = DeviceType::kCuda};
  const auto plan = [&] { return PlanRun(*model_, options_, 1, 1, target, MemoryLimits(root_)); };
  const RunPlan gpu = plan();
  int64_t sum = 0;
  for (const MemoryKind kind :
       {MemoryKind::kParameters, MemoryKind::kGradients, MemoryKind::kOptimizer,
        MemoryKind::kUnsharded, MemoryKind::kSecondary, MemoryKind::kActivations}) {
    sum += gpu.bytes(kind);
  }
  EXPECT_EQ(gpu.planned(), sum);
  EXPECT_EQ(gpu.bytes(MemoryKind::kSnapshot), 0);
  EXPECT_EQ(gpu.memory.bytes(MemoryKind::kSnapshot), cpu.memory.bytes(MemoryKind::kSnapshot));
  EXPECT_GT(gpu.total(), gpu.outside + gpu.memory.bytes(MemoryKind::kSnapshot));
  EXPECT_TRUE(gpu.fits()) << "nobody has said how much there is";
  EXPECT_THAT(PlanToJson(gpu), HasSubstr("\"outside\": null"));

  target.room = {gpu.planned(), "memory of a GPU"};
  EXPECT_TRUE(plan().fits());
  target.room->bytes -= 1;
  target.outside = kMiB;
  EXPECT_FALSE(plan().fits());
  try {
    RequireFit(*model_, options_, plan(), target, MemoryLimits(root_));
    ADD_FAILURE() << "taken";
  } catch (const MemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("of device memory, and"));
    EXPECT_THAT(error.what(), HasSubstr("are free (memory of a GPU; contexts, libraries and other "
                                        "programs have 1.00 MiB)"));
  }
  // The host's is another matter.
  target.room.reset();
  target.other_host = true;
  target.host = {gpu.total() - 1, "host_memory of it"};
  EXPECT_FALSE(plan().fits());
  EXPECT_TRUE(plan().fits_device());
}

// A hardware file need not know all memory of its machine.
TEST_F(PlanTest, SaysWhatItFitsAndWhatNobodyKnows) {
  PlanTarget target{.device = DeviceType::kCuda, .other_host = true};
  const auto words = [&] {
    const RunPlan plan = PlanRun(*model_, options_, 4, 2, target, MemoryLimits(root_));
    EXPECT_THAT(PlanToText(plan), HasSubstr("\n  " + FitsInWords(plan) + "\n"));
    EXPECT_THAT(PlanToJson(plan),
                HasSubstr(std::string("\"fits_host\": ") + (target.host ? "true" : "null")));
    EXPECT_TRUE(plan.fits());
    return FitsInWords(plan);
  };
  const RunPlan plan = PlanRun(*model_, options_, 4, 2, target, MemoryLimits(root_));
  const std::string device = HumanBytes(plan.planned()) + " a device";
  const std::string host = HumanBytes(2 * plan.total()) + " a host";
  const std::string unknown = ", which the hardware file does not know";
  EXPECT_EQ(words(), "needs " + device + " and " + host + unknown);
  target.room = {plan.planned(), "memory of a GPU"};
  EXPECT_EQ(words(), "fits on the device; needs " + host + unknown);
  target.host = {plan.total(), "host_memory of it"};
  EXPECT_EQ(words(), "fits: yes");
  target.room.reset();
  EXPECT_EQ(words(), "fits on the host; needs " + device + unknown);
  target.device = DeviceType::kCpu;
  target.host.reset();
  EXPECT_THAT(words(), StartsWith("fits on the device; needs "));
}

// A share that fitted elsewhere, or beside less: a resume has it from the run.
TEST_F(PlanTest, AShareThatDoesNotFitCanBeLeftToTheHost) {
  PlanTarget target{.device = DeviceType::kCuda};
  const auto plan = [&] { return PlanRun(*model_, options_, 1, 1, target, MemoryLimits(root_)); };
  options_.executor.cpu_offload = {.optimizer = true, .optimizer_share = 0};
  target.room = {plan().planned(), "memory of a GPU"};
  options_.executor.cpu_offload.optimizer_share = 1;
  EXPECT_FALSE(plan().fits());
  try {
    RequireFit(*model_, options_, plan(), target, MemoryLimits(root_));
    ADD_FAILURE() << "taken";
  } catch (const MemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("it fits with fsdp.cpu_offload.optimizer_share: 0:"));
  }
}

// Adafactor's state is read more than once in an update, and not in codes.
TEST_F(PlanTest, CuresAreThoseThatTheOptimizerTakes) {
  for (const OptimizerKind kind : {OptimizerKind::kMuon, OptimizerKind::kAdafactor}) {
    options_.optimizer.kind = kind;
    options_.executor.whole = WholeRuleOf(options_.optimizer);
    options_.executor.factored = kind == OptimizerKind::kAdafactor;
    PlanTarget target{.device = DeviceType::kCuda};
    const auto plan = [&] { return PlanRun(*model_, options_, 1, 1, target, MemoryLimits(root_)); };
    target.room = {plan().planned() - 1, "memory of a GPU"};
    std::string settings;
    for (const Cure& cure : FittingCures(*model_, options_, plan(), target, MemoryLimits(root_))) {
      settings += cure.setting + "\n";
    }
    EXPECT_THAT(settings, HasSubstr("fsdp.cpu_offload.optimizer: true\n"));
    if (kind == OptimizerKind::kMuon) continue;
    EXPECT_THAT(settings, Not(HasSubstr("spill")));
    EXPECT_THAT(settings, Not(HasSubstr("8bit")));
  }
}

// With parameters offloaded a rank alone holds a few units of the model, and the host the rest:
// masters, two moments and gradients in fp32, parameters in bf16.
TEST_F(PlanTest, OneGpuTrainsAModelOfAnySize) {
  LlamaConfig config;
  config.hidden_size = 5120;
  config.intermediate_size = 13824;
  config.num_hidden_layers = 40;
  config.num_attention_heads = config.num_key_value_heads = 40;
  config.head_dim = 128;
  config.vocab_size = 32000;
  config.max_position_embeddings = 4096;
  const std::shared_ptr<Model> model = MakeModel(config);
  SessionOptions options;
  options.eval = false;
  options.global_batch_size = 8;
  ExecutorOptions& o = options.executor;
  o.sample_length = 1024;
  o.micro_batch_size = 2;
  o.micro_batches = 4;
  o.recompute = Recompute::kFull;
  o.mixed_precision.param_dtype = DType::kBFloat16;
  o.cpu_offload = {.params = true, .optimizer = true};
  const PlanTarget target{.device = DeviceType::kCuda};
  const RunPlan plan = PlanRun(*model, options, 1, 1, target, MemoryLimits(root_));
  EXPECT_LT(plan.planned(), int64_t{16} << 30);
  const auto parameters = 13'015'864'320.0;
  const auto host = static_cast<double>(plan.memory.bytes(MemoryPlace::kPinned));
  EXPECT_NEAR(host / parameters, 4 + 8 + 4 + 2, 0.1);
  EXPECT_EQ(plan.bytes(MemoryKind::kParameters), 0);
  // Four micro-batches fetch their blocks twice, table and head once; gradients go to the host four
  // times, and back three times.
  const double blocks = parameters - 2 * 32000.0 * 5120;
  EXPECT_NEAR(plan.traffic.to_host_bytes / (4 * 4 * parameters), 1, 0.01);
  EXPECT_NEAR(plan.traffic.to_device_bytes,
              4 * 2 * (2 * blocks + 2 * 32000.0 * 5120) + 3 * 4 * parameters, 1e-4 * 2e11);
  EXPECT_NEAR(plan.traffic.update_bytes / parameters, 4 + 3 * 8 + 2, 0.1);
  EXPECT_GT(plan.traffic.flops, 8 * parameters * 8 * 1024);  // With what is computed again.

  // Masters and moments are on the disk, once there and back a step; the host keeps gradients and
  // parameters, and two blocks and two parts of 2^19 elements of what is spilled.
  o.cpu_offload.spill = ".";
  const RunPlan spilled = PlanRun(*model, options, 1, 1, target, MemoryLimits(root_));
  EXPECT_EQ(spilled.planned(), plan.planned());
  EXPECT_NEAR(static_cast<double>(spilled.memory.bytes(MemoryPlace::kDisk)) / parameters, 12, 0.01);
  const double slots = (2 * (blocks / 40) + 2 * 524288) * 12;
  EXPECT_NEAR(static_cast<double>(spilled.memory.bytes(MemoryPlace::kPinned)),
              host - 12 * parameters + slots, 0.01 * host);
  EXPECT_NEAR(spilled.traffic.spill_read_bytes / parameters, 12, 0.01);
  EXPECT_NEAR(spilled.traffic.spill_write_bytes / parameters, 12, 0.01);
  // Hashes of what is on the disk.
  EXPECT_NEAR(static_cast<double>(spilled.outside - plan.outside) / parameters, 12.0 / 512, 0.001);
}

// A snapshot's copies take none, either. The token table is larger than all blocks together.
TEST_F(PlanTest, SpillingTakesNoMemoryForTheLargestUnit) {
  Gpt2Config config = TinyRun::TinyConfig();
  config.vocab_size = 50000;
  config.hidden_size = 256;
  config.num_attention_heads = 4;
  config.num_hidden_layers = 6;
  const std::shared_ptr<Model> model = MakeModel(config);
  options_.snapshot = true;
  ExecutorOptions& o = options_.executor;
  o.cpu_offload = {.optimizer = true};
  o.spill_part = int64_t{1} << 16;
  const auto plan = [&] { return PlanMemory(*model, options_, /*world=*/2); };
  const MemoryPlan before = plan();
  o.cpu_offload.spill = ".";
  const MemoryPlan after = plan();
  const int64_t disk = after.bytes(MemoryPlace::kDisk);
  int64_t moved = 0;
  for (const MemoryKind kind :
       {MemoryKind::kParameters, MemoryKind::kOptimizer, MemoryKind::kSnapshot}) {
    moved += before.bytes(kind, MemoryPlace::kPinned);
  }
  EXPECT_NEAR(static_cast<double>(disk), static_cast<double>(moved), 0.01 * moved);
  const int64_t gone = before.bytes(MemoryPlace::kPinned) - after.bytes(MemoryPlace::kPinned);
  EXPECT_EQ(before.bytes(MemoryPlace::kDevice), after.bytes(MemoryPlace::kDevice));
  EXPECT_GT(gone, 0.9 * static_cast<double>(disk));
}

// All but the last blocks' activations: what the device has besides does not grow with the blocks.
TEST_F(PlanTest, OffloadedActivationsAreTheHosts) {
  Gpt2Config config = TinyRun::TinyConfig();
  config.num_hidden_layers = 12;
  const std::shared_ptr<Model> model = MakeModel(config);
  const PlanTarget target{.device = DeviceType::kCuda};
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    options_.executor.recompute = recompute;
    const auto plan = [&](ActivationOffload offload) {
      options_.executor.activation_offload = offload;
      return PlanRun(*model, options_, 1, 1, target, MemoryLimits(root_));
    };
    const RunPlan all = plan(ActivationOffload::kNone), host = plan(ActivationOffload::kHost);
    const int64_t gone = all.planned() - host.planned();
    const int64_t there =
        host.memory.bytes(MemoryPlace::kPinned) - all.memory.bytes(MemoryPlace::kPinned);
    EXPECT_GT(gone, there / 2) << "of eleven blocks three are there at a time";
    EXPECT_GT(there, 0);
    EXPECT_EQ(host.traffic.to_host_bytes, host.traffic.to_device_bytes);
    EXPECT_NEAR(host.traffic.to_host_bytes, options_.executor.micro_batches * there,
                0.05 * static_cast<double>(there));
    // On a disk, and the host has room for two pieces on their way.
    options_.executor.cpu_offload.spill = ".";
    options_.executor.spill_part = 2048;
    const RunPlan disk = plan(ActivationOffload::kSpill);
    EXPECT_EQ(disk.planned(), host.planned());
    EXPECT_GE(disk.memory.bytes(MemoryPlace::kDisk), there);
    EXPECT_LT(disk.memory.bytes(MemoryPlace::kPinned),
              all.memory.bytes(MemoryPlace::kPinned) + 2 * (8192 + 2 * 4096));
    EXPECT_EQ(disk.traffic.spill_read_bytes, disk.traffic.spill_write_bytes);
    EXPECT_EQ(disk.traffic.spill_write_bytes, host.traffic.to_host_bytes);
    EXPECT_THAT(PlanToText(disk), HasSubstr("to the disk"));
    options_.executor.cpu_offload.spill.reset();
  }
}

// Checkpoints are read and written through the host, so it holds them anyway.
TEST_F(PlanTest, AGpuHasASnapshotEvenWithoutOne) {
  options_.snapshot = false;
  const PlanTarget target{.device = DeviceType::kCuda};
  const RunPlan gpu = PlanRun(*model_, options_, 1, 1, target, MemoryLimits(root_));
  EXPECT_EQ(Plan().memory.bytes(MemoryKind::kSnapshot), 0);
  options_.snapshot = true;
  EXPECT_EQ(gpu.memory.bytes(MemoryKind::kSnapshot, MemoryPlace::kPinned),
            Plan().memory.bytes(MemoryKind::kSnapshot));
}

// ulimit counts addresses, touched or not, and of each process alone.
TEST_F(PlanTest, ALimitOfTheRecipe) {
  const int64_t needs = Plan(2).planned();
  options_.executor.memory_limit = needs;
  EXPECT_TRUE(Plan(2).fits());
  options_.executor.memory_limit = needs - 1;
  const RunPlan plan = Plan(2);
  EXPECT_FALSE(plan.fits());
  EXPECT_EQ(plan.planned(), needs);
  try {
    RequireFit(*model_, options_, plan, {}, MemoryLimits(root_));
    FAIL() << "it fits";
  } catch (const MemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("run.memory_limit is "));
    EXPECT_THAT(error.what(), HasSubstr("\nit fits with fsdp.limit_all_gathers: 1"));
  }
}

TEST_F(PlanTest, ACachingAllocatorIsPlannedByRunningIt) {
  options_.executor.limiter = FsdpOptions::Limiter::kHost;
  options_.executor.buffers = FsdpOptions::Buffers::kCaching;
  const RunPlan plan = Plan(2);
  const CachingStatistics s = plan.statistics();
  EXPECT_EQ(plan.planned(), s.reserved.peak);
  EXPECT_LT(s.allocated.peak, s.active.peak);
  EXPECT_LT(s.active.peak, s.reserved.peak);
  EXPECT_GT(plan.total(), s.reserved.peak);
  EXPECT_THAT(PlanToJson(plan),
              HasSubstr("{\"allocated_peak\": " + std::to_string(s.allocated.peak) +
                        ", \"active_peak\": " + std::to_string(s.active.peak) +
                        ", \"reserved_peak\": " + std::to_string(s.reserved.peak)));
  EXPECT_THAT(PlanToText(plan), HasSubstr("  active "));
  // One segment is no memory for two streams.
  options_.executor.memory_limit = 2 * kMiB;
  const RunPlan small = Plan(2);
  EXPECT_FALSE(small.fits());
  EXPECT_EQ(small.planned(), plan.planned());
  EXPECT_GT(small.traffic.all_gather_bytes, 0);
  EXPECT_EQ(small.traffic.all_gather_bytes, plan.traffic.all_gather_bytes);
  try {
    RequireFit(*model_, options_, small, {}, MemoryLimits(root_));
    FAIL() << "it fits";
  } catch (const MemoryError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("it fits with fsdp.buffers: slots and fsdp.limiter: device: "));
  }
}

// On the CPU, which has one memory, host memory counts against the limit, in the peaks and in what
// is said: a copy to be saved, and with slots what is offloaded. A GPU's device memory is its own.
TEST_F(PlanTest, HostMemoryCountsOnTheCpuWithACachingAllocatorAsWithSlots) {
  Gpt2Config config = TinyRun::TinyConfig();
  config.hidden_size = 480;
  config.intermediate_size = 1920;
  const std::shared_ptr<Model> model = MakeModel(config);
  ExecutorOptions& o = options_.executor;
  o.limiter = FsdpOptions::Limiter::kHost;
  options_.snapshot = true;
  for (const auto buffers : {FsdpOptions::Buffers::kSlots, FsdpOptions::Buffers::kCaching}) {
    for (const DeviceType device : {DeviceType::kCpu, DeviceType::kCuda}) {
      const bool cpu = device == DeviceType::kCpu;
      o.buffers = buffers;
      o.cpu_offload.optimizer = buffers == FsdpOptions::Buffers::kSlots;
      const auto plan = [&](std::optional<int64_t> limit) {
        o.memory_limit = limit;
        return PlanRun(*model, options_, 1, 1, {.device = device}, MemoryLimits(root_));
      };
      const RunPlan all = plan(std::nullopt);
      SCOPED_TRACE(PlanToText(all));
      const int64_t of_device = all.memory.bytes(MemoryPlace::kDevice);
      const int64_t host = all.memory.bytes(MemoryPlace::kPinned);
      ASSERT_GT(host, 20 * kMiB);
      EXPECT_EQ(all.planned(), of_device + (cpu ? host : 0));
      EXPECT_EQ(all.statistics().reserved.peak, all.planned());
      EXPECT_GT(all.statistics().allocated.peak, cpu ? host : 0);
      EXPECT_EQ(all.total() - all.outside, cpu ? all.planned() : host);
      EXPECT_TRUE(plan(all.planned()).fits_limit());
      EXPECT_EQ(plan(of_device).fits_limit(), !cpu);
    }
  }
}

// Three settings print every line between them.
TEST_F(PlanTest, EveryWordOfTheTextIsExplained) {
  const std::string terms = PlanTerms();
  const auto expect = [&](const PlanTarget& target) {
    const RunPlan plan = PlanRun(*model_, options_, 2, 1, target, MemoryLimits(root_));
    std::istringstream lines(PlanToText(plan));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  ")) continue;
      const std::string word = line.substr(0, std::min(line.find("  ", 2), line.find(':')));
      EXPECT_THAT(terms, HasSubstr("\n" + word + "  ")) << line;
    }
  };
  options_.executor.memory_limit = int64_t{1} << 40;
  options_.executor.reshard_after_forward = 2;
  expect({});
  options_.executor.reshard_after_forward.reset();
  options_.executor.limiter = FsdpOptions::Limiter::kHost;
  options_.executor.buffers = FsdpOptions::Buffers::kCaching;
  expect({});
  options_ = TinyRun::TinyOptions();
  options_.executor.cpu_offload = {.optimizer = true, .spill = ::testing::TempDir()};
  expect({.device = DeviceType::kCuda,
          .room = MemoryRoom{int64_t{1} << 40, "a GPU"},
          .outside = kMiB,
          .code = kMiB});
}

TEST_F(PlanTest, HalvesMicroBatchesUntilTheyFit) {
  options_.executor.micro_batch_size = 4;
  options_.executor.micro_batches = 2;
  const int64_t of_four = Plan().planned();
  options_.executor.micro_batch_size = 16;
  options_.executor.memory_limit = of_four;
  try {
    RequireFit(*model_, options_, Plan(), {}, MemoryLimits(root_));
    FAIL() << "it fits";
  } catch (const MemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr(" train.micro_batch_size: 4: "));
  }
  options_.executor.memory_limit = of_four - 1;
  try {
    RequireFit(*model_, options_, Plan(), {}, MemoryLimits(root_));
    FAIL() << "it fits";
  } catch (const MemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr(" train.micro_batch_size: 2: "));
  }
}

TEST_F(PlanTest, FakeCollectivesSendNothing) {
  options_.executor.fake_all_gather = options_.executor.fake_reduce = true;
  const StepTraffic sent = Plan(4).traffic;
  EXPECT_EQ(sent.all_gather_bytes + sent.reduce_scatter_bytes, 0);
  EXPECT_LT(sent.all_reduce_bytes, 1024);  // The scalars.
}

TEST_F(PlanTest, UlimitLimitsIt) {
  const auto limit = [&](const std::string& what, int64_t bytes) {
    Write("/proc/self/limits", what + "  " + std::to_string(bytes) + "  unlimited  bytes\n");
  };
  const int64_t used = int64_t{300000} << 10;
  limit("Max address space", used + Plan().memory.bytes());
  EXPECT_FALSE(Plan().fits());
  EXPECT_THAT(Plan().available->limit, StartsWith("ulimit -v, less "));
  limit("Max address space", used + Plan().total() + (int64_t{1} << 30));
  EXPECT_TRUE(Plan().fits());
  EXPECT_EQ(Plan(2).available->bytes < Plan(1).available->bytes / 2, false);

  limit("Max data size", (int64_t{40000} << 10) + Plan().memory.bytes());
  EXPECT_FALSE(Plan().fits());
  EXPECT_THAT(Plan().available->limit, StartsWith("ulimit -d, less "));
}

}  // namespace
}  // namespace fsdp
