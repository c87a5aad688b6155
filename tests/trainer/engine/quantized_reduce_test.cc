// Reductions of quantised gradients: each rank ends with what a model of blocks, hops and orders
// says, to the bit, and counts are what was planned.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "tests/testing/tiny_run.h"
#include "tests/trainer/comm/ranks.h"
#include "tests/trainer/engine/quantized_reduce_model.h"
#include "trainer/comm/hosts/hosts_communicator.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/quantized_collectives.h"
#include "trainer/fsdp/try_collectives.h"

namespace fsdp {
namespace {

using testing::ExpectReduceModel;
using testing::FirstDifference;
using testing::kMinReduced;
using testing::ReduceSetting;
using testing::RunOf;
using testing::SampleOf;
using testing::TinyResult;
using testing::TinyRun;
using testing::Train;
using Reduce = FsdpOptions::Quantize::Reduce;

TEST(QuantizedReduce, OneHopIsTheModel) {
  for (int world = 1; world <= 6; ++world) {
    for (const DType params : {DType::kFloat32, DType::kBFloat16}) {
      for (const Reduce reduce : {Reduce::kInt8, Reduce::kInt4}) {
        ExpectReduceModel({.world = world,
                           .reduce = reduce,
                           .block = world % 2 == 0 ? 256 : 64,
                           .params = params});
      }
    }
  }
}

// 1 to 3 hosts.
TEST(QuantizedReduce, TwoHopsAreTheModel) {
  for (const auto& [world, inside] :
       {std::pair(2, 1), {2, 2}, {3, 1}, {4, 2}, {6, 2}, {6, 3}, {6, 6}}) {
    for (const DType params : {DType::kFloat32, DType::kBFloat16}) {
      for (const Reduce reduce : {Reduce::kInt8, Reduce::kInt4}) {
        ExpectReduceModel({.world = world,
                           .inside = inside,
                           .reduce = reduce,
                           .block = inside % 2 == 0 ? 64 : 128,
                           .params = params});
      }
    }
  }
}

// Ranks that hold the same number hold the same bits of it, or Train() throws.
TEST(QuantizedReduce, CopiesAreTheModel) {
  for (const auto& [world, copies, inside] :
       {std::tuple(4, 2, 0), {6, 2, 0}, {10, 5, 0}, {6, 3, 1}, {8, 2, 2}, {3, 3, 0}}) {
    for (const Reduce reduce : {Reduce::kInt8, Reduce::kInt4}) {
      ExpectReduceModel({.world = world,
                         .inside = inside,
                         .copies = copies,
                         .reduce = reduce,
                         .block = copies == 2 ? 64 : 256,
                         .params = copies == 2 ? DType::kBFloat16 : DType::kFloat32});
    }
  }
}

TEST(QuantizedReduce, EachMicroBatchIsSummedByItself) {
  ExpectReduceModel({.world = 2, .micro_batches = 3});
  ExpectReduceModel({.world = 4, .inside = 2, .reduce = Reduce::kInt4, .micro_batches = 2});
  ExpectReduceModel({.world = 4, .copies = 2, .reduce = Reduce::kInt4, .micro_batches = 2});
}

// One sample makes elements of every block not finite: they arrive as NaN, whole, and such a step
// changes nothing.
TEST(QuantizedReduce, SkipsStepsThatAreNotFinite) {
  for (const auto& [world, inside, copies] : {std::tuple(2, 0, 1), {4, 2, 1}, {4, 0, 2}}) {
    TinyRun run =
        RunOf({.world = world, .inside = inside, .copies = copies, .reduce = Reduce::kInt4});
    run.sample = [sample = SampleOf(run)](int64_t step, int64_t number, std::span<int32_t> tokens,
                                          std::span<float> weights) {
      sample(step, number, tokens, weights);
      if (number == 3) weights[2] = INFINITY;
    };
    const TinyResult result = Train(run);
    EXPECT_FALSE(std::isfinite(result.grad_norms.at(0)));
    EXPECT_EQ(result.parameters, result.initial);
    for (const auto& [name, values] : result.gradients) {
      if (static_cast<int64_t>(values.size()) < kMinReduced) continue;
      EXPECT_TRUE(std::ranges::all_of(values, [](float x) { return std::isnan(x); })) << name;
    }
  }
}

// Both hops count as a reduce-scatter, both parts of an exchange between copies as an all-reduce.
TEST(QuantizedReduce, CountsWhatWasPlanned) {
  for (const auto& [world, inside, copies] :
       {std::tuple(3, 0, 1), {4, 2, 1}, {6, 3, 1}, {4, 0, 2}, {6, 0, 3}, {8, 2, 2}}) {
    for (const Reduce reduce : {Reduce::kInt8, Reduce::kInt4}) {
      const ReduceSetting s{
          .world = world, .inside = inside, .copies = copies, .reduce = reduce, .micro_batches = 2};
      TinyRun run = RunOf(s);
      std::vector<TrafficBytes> sent(static_cast<size_t>(world));  // By rank.
      run.on_traffic = [&](int rank, int64_t step, const TrafficBytes& bytes) {
        if (step == 1) sent[static_cast<size_t>(rank)] = bytes;
      };
      Train(run);
      Gpt2 model(run.config);
      run.options.executor.micro_batches = s.micro_batches;
      StepTraffic planned;
      PlanMemory(model, run.options, world, &planned);
      for (const TrafficBytes& bytes : sent) {
        EXPECT_EQ(bytes.of(Collective::kReduceScatter), planned.reduce_scatter_bytes);
        EXPECT_EQ(bytes.of(Collective::kAllToAll), 0);
      }
      EXPECT_EQ(sent[0].of(Collective::kAllReduce), planned.all_reduce_bytes);
      // Each micro-batch sends each shard once, whatever hops there are.
      const ExecutorOptions& o = run.options.executor;
      const Layout layout = LayoutFor(o, model, s.shards());
      double once = 0;
      for (const FlatParameter& flat : layout.flat_parameters) {
        const bool quantized = ReducesQuantized(flat, o.quantize);
        once +=
            static_cast<double>(quantized ? QuantizedReduceBytes(flat, o.quantize) : flat.size * 4);
      }
      EXPECT_EQ(planned.reduce_scatter_bytes, 2 * once * (s.shards() - 1) / s.shards());
    }
  }
}

// Rank r is of host r / 2; hosts meet on the loopback device.
std::vector<testing::Outcome> OnHostsOfTwo(int size, const testing::Body& body) {
  const testing::Join join = [size](Store& store, const std::string& name, const RankGroup& group,
                                    const CommOptions& options) {
    return CreateHostsCommunicator(store, name, group, HostPlacement::InOrder(size, 2), "127.0.0.1",
                                   options);
  };
  return testing::RunThreadRanksWith(join, size, body);
}

// The bits of threads, and of the two hops the second alone leaves the host.
TEST(QuantizedReduce, CrossesTheNetworkOnce) {
  for (const int hosts : {2, 3}) {
    TinyRun run = RunOf({.world = 2 * hosts, .inside = 2, .reduce = Reduce::kInt4});
    run.options.executor.fake_all_gather = true;  // Nothing else is sent, but for a few scalars.
    const TinyResult threads = Train(run);
    const Gpt2 model(run.config);
    const ExecutorOptions& o = run.options.executor;
    const Layout layout = LayoutFor(o, model, 2 * hosts);
    int64_t across = 0;
    for (const FlatParameter& flat : layout.flat_parameters) {
      ASSERT_TRUE(ReducesQuantized(flat, o.quantize));
      across += QuantizedReduceBytes(flat, o.quantize) / (2 * hosts) * (hosts - 1);
    }
    run.ranks = OnHostsOfTwo;
    run.on_traffic = [across](int rank, int64_t step, const TrafficBytes& bytes) {
      if (step == 0) return;
      EXPECT_GE(bytes.network, across) << rank;
      EXPECT_LT(bytes.network, across + 200) << rank;
    };
    EXPECT_EQ(FirstDifference(Train(run), threads), "") << hosts;
  }
}

// For measuring: a rank's own slice in every place, and nothing is sent.
TEST(QuantizedReduce, FakesBothHops) {
  for (const auto& [inside, copies] : {std::pair(0, 1), {2, 1}, {0, 2}}) {
    TinyRun run = RunOf({.world = 4, .inside = inside, .copies = copies});
    run.options.executor.fake_reduce = true;
    run.on_traffic = [](int, int64_t, const TrafficBytes& bytes) {
      EXPECT_EQ(bytes.of(Collective::kReduceScatter), 0);
    };
    // Each of the ranks has the same slices to add.
    run.sample = [sample = SampleOf(run)](int64_t step, int64_t number, std::span<int32_t> tokens,
                                          std::span<float> weights) {
      sample(step, number % 2, tokens, weights);
    };
    const TinyResult fake = Train(run);
    run.options.executor.fake_reduce = false;
    run.on_traffic = nullptr;
    EXPECT_EQ(fake.gradients, Train(run).gradients);
  }
}

// With int4 and blocks of 256 a quarter of bf16's bytes, a sixty-fourth more, and what is raw; of
// these what leaves a host is its share of the second hop.
TEST(QuantizedReduce, SendsAQuarterOfBF16) {
  Gpt2Config config = TinyRun::TinyConfig();
  config.hidden_size = 768;
  config.intermediate_size = 3072;
  const Gpt2 model(config);
  ExecutorOptions o;
  o.quantize = {.reduce = Reduce::kInt4, .min_size = 1000};
  const int hosts = 2, inside = 2;
  const Layout layout = LayoutFor(o, model, hosts * inside);
  double elements = 0, bytes = 0;
  for (const int f : layout.units[1].flat_parameters) {
    const FlatParameter& flat = layout.flat_parameters[f];
    ASSERT_TRUE(ReducesQuantized(flat, o.quantize));
    elements += static_cast<double>(flat.size);
    bytes += static_cast<double>(QuantizedReduceBytes(flat, o.quantize));
  }
  EXPECT_LT(bytes, 0.27 * 2 * elements);
  EXPECT_GT(bytes, 0.25 * 2 * elements);
  EXPECT_LT(bytes / (hosts * inside) * (hosts - 1),
            0.53 * elements * (hosts - 1) / (hosts * inside));
  // Nothing is large enough.
  o.quantize.min_size = int64_t{1} << 30;
  for (const FlatParameter& flat : layout.flat_parameters) {
    EXPECT_FALSE(ReducesQuantized(flat, o.quantize));
  }
}

// The largest calls that come are of bytes.
TEST(QuantizedReduce, IsTriedAsItTravels) {
  const Gpt2 model(TinyRun::TinyConfig());
  ExecutorOptions o = RunOf({.world = 8, .inside = 2, .copies = 2}).options.executor;
  const Mesh mesh = MeshFor(o, /*rank=*/0, /*world=*/8);
  const Layout layout = LayoutFor(o, model, 4);
  int64_t most = 0, most_of_copy = 0;
  for (const FlatParameter& flat : layout.flat_parameters) {
    ASSERT_TRUE(ReducesQuantized(flat, o.quantize));
    most = std::max(most, QuantizedReduceBytes(flat, o.quantize));
    most_of_copy = std::max(most_of_copy, QuantizedReplicaBytes(flat, 2, o.quantize));
  }
  const auto sizes = LargestCollectives(layout, o, mesh);
  using Sizes = std::vector<Communicator::Size>;
  constexpr DType kByte = DType::kUInt8;
  EXPECT_EQ(sizes.at(Group::kInside), (Sizes{{Collective::kAllToAll, kByte, kByte, most / 2}}));
  EXPECT_EQ(sizes.at(Group::kAcross), (Sizes{{Collective::kAllToAll, kByte, kByte, most / 4}}));
  EXPECT_EQ(sizes.at(Group::kReplicate),
            (Sizes{{Collective::kAllToAll, kByte, kByte, most_of_copy / 2},
                   {Collective::kAllGather, kByte, kByte, most_of_copy / 2}}));
  EXPECT_FALSE(sizes.contains(Group::kReduce));
}

}  // namespace
}  // namespace fsdp
