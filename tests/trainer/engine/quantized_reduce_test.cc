// Reductions of quantised gradients: each rank ends with what a model of blocks, hops and orders
// says, to the bit, and counts are what was planned.
#include "trainer/fsdp/quantized_reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "tests/testing/tiny_run.h"
#include "tests/trainer/ops/quantize_model.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/try_collectives.h"

namespace fsdp {
namespace {

using testing::FirstDifference;
using testing::SampleOf;
using testing::Tensors;
using testing::TinyResult;
using testing::TinyRun;
using testing::Train;
using Reduce = FsdpOptions::Quantize::Reduce;

constexpr int64_t kMinSize = 700;  // Some matrices of the tiny model are smaller.

struct Setting {
  int world = 1;
  int inside = 0;  // Ranks of a host, of equal ones; 0: one hop.
  int copies = 1;
  Reduce reduce = Reduce::kInt8;
  int block = 64;
  DType params = DType::kFloat32;
  int micro_batches = 1;

  int shards() const { return world / copies; }
};

TinyRun RunOf(const Setting& s) {
  TinyRun run;
  run.world = s.world;
  run.steps = 1;
  run.mean = false;
  run.options.global_batch_size = 2 * s.world * s.micro_batches;
  ExecutorOptions& o = run.options.executor;
  o.mixed_precision.param_dtype = s.params;
  if (s.copies > 1) {
    o.sharding_strategy = Strategy::kHybridShard;
    o.shard_size = s.shards();
  }
  o.quantize = {.reduce = s.reduce, .block = s.block, .min_size = kMinSize};
  o.inside = s.inside;
  return run;
}

// What rank `rank` adds to gradients in a micro-batch: the samples of all others weigh nothing, and
// one rank that goes through all of them has nobody to sum with.
const Tensors& OwnGradients(const Setting& s, int rank, int micro_batch) {
  static std::map<std::tuple<int, int, DType, int, int>, Tensors> found;
  const auto [at, added] =
      found.try_emplace({s.world, s.micro_batches, s.params, rank, micro_batch});
  if (!added) return at->second;
  TinyRun run = RunOf(s);
  const int64_t first = 2 * (micro_batch * s.world + rank);
  run.sample = [first, sample = SampleOf(run)](int64_t step, int64_t number,
                                               std::span<int32_t> tokens,
                                               std::span<float> weights) {
    sample(step, number, tokens, weights);
    if (number < first || number >= first + 2) std::ranges::fill(weights, 0.0f);
  };
  run.world = 1;
  run.options.executor.shard_size.reset();
  run.options.executor.sharding_strategy = Strategy::kFullShard;
  run.options.executor.quantize = {};
  return at->second = Train(run).gradients;
}

// Elements [begin, end) of a parameter that are sent together.
using Stretch = std::pair<int64_t, int64_t>;

class Model {
 public:
  Model(const Setting& s, const Gpt2& model) : s_(s) {
    const ExecutorOptions o = RunOf(s).options.executor;
    layout_ = MakeLayout(ShapesOf(model, DTypeRuleOf(o)), o.auto_wrap, s.shards());
  }

  // The gradient of each parameter, as all ranks sum it.
  Tensors Gradients() const {
    Tensors gradients;
    for (const FlatParameter& flat : layout_.flat_parameters) {
      for (const Placement& p : flat.parameters) {
        std::vector<float>& all = gradients[p.name];
        for (int m = 0; m < s_.micro_batches; ++m) {
          std::vector<std::vector<float>> copies;
          for (int c = 0; c < s_.copies; ++c) copies.push_back(OfCopy(flat, p, c, m));
          if (m == 0) {
            sums_ = copies;
          } else {
            for (int c = 0; c < s_.copies; ++c) Add(copies[c], sums_[c]);
          }
        }
        all = OverCopies(flat, p);
      }
    }
    return gradients;
  }

 private:
  static void Add(const std::vector<float>& more, std::vector<float>& sum) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }

  bool IsQuantized(const Placement& p) const {
    return s_.shards() > 1 && p.shape.rank() > 1 && p.size() >= kMinSize;
  }

  // As it arrives where elements of the flat parameter are sent up to each of `ends`.
  std::vector<float> Sent(const std::vector<float>& x, const Placement& p,
                          const std::vector<int64_t>& ends) const {
    if (!IsQuantized(p)) return x;
    const auto form = s_.reduce == Reduce::kInt8 ? QuantizedForm::kInt8 : QuantizedForm::kInt4;
    std::vector<float> y(x.size());
    for (int64_t begin = 0; begin < p.size();) {
      const int64_t sent = *std::ranges::upper_bound(ends, p.offset + begin) - p.offset;
      const int64_t end = std::min({p.size(), sent, (begin / s_.block + 1) * s_.block});
      const float scale = ModelScale(form, {x.begin() + begin, x.begin() + end});
      for (; begin < end; ++begin) {
        y[begin] = ModelValue(form, ModelCode(form, x[begin], scale), scale);
      }
    }
    return y;
  }

  // Of the ranks of copy `c` in a micro-batch: of each host, then of all.
  std::vector<float> OfCopy(const FlatParameter& flat, const Placement& p, int c, int m) const {
    std::vector<int64_t> ends;
    for (int s = 1; s <= s_.shards(); ++s) ends.push_back(s * flat.shard_size);
    const int inside = s_.inside == 0 ? s_.shards() : s_.inside;
    std::vector<float> all;
    for (int host = 0; host < s_.shards() / inside; ++host) {
      std::vector<float> sum;
      for (int l = 0; l < inside; ++l) {
        const int rank = c * s_.shards() + host * inside + l;
        const std::vector<float> own = Sent(OwnGradients(s_, rank, m).at(p.name), p, ends);
        l == 0 ? void(sum = own) : Add(own, sum);
      }
      if (inside > 1 && inside < s_.shards()) sum = Sent(sum, p, ends);
      host == 0 ? void(all = sum) : Add(sum, all);
    }
    return all;
  }

  // Each copy's shard goes in as many parts as there are copies.
  std::vector<float> OverCopies(const FlatParameter& flat, const Placement& p) const {
    if (s_.copies == 1) return sums_[0];
    std::vector<int64_t> ends;
    for (int s = 0; s < s_.shards(); ++s) {
      for (int c = 1; c <= s_.copies; ++c) {
        ends.push_back(s * flat.shard_size + flat.shard_size / 64 * c / s_.copies * 64);
      }
    }
    std::vector<float> all = Sent(sums_[0], p, ends);
    for (int c = 1; c < s_.copies; ++c) Add(Sent(sums_[c], p, ends), all);
    return Sent(all, p, ends);
  }

  const Setting s_;
  Layout layout_;
  mutable std::vector<std::vector<float>> sums_;  // Of a parameter, by copy.
};

void ExpectModel(const Setting& s) {
  SCOPED_TRACE("world " + std::to_string(s.world) + ", " + std::to_string(s.inside) +
               " inside, copies " + std::to_string(s.copies) + ", form " +
               std::to_string(static_cast<int>(s.reduce)) + ", block " + std::to_string(s.block) +
               ", " + std::string(Name(s.params)) + ", micro-batches " +
               std::to_string(s.micro_batches));
  TinyRun run = RunOf(s);
  const TinyResult quantized = Train(run);
  const Tensors want = Model(s, Gpt2(run.config)).Gradients();
  ASSERT_EQ(quantized.gradients.size(), want.size());
  for (const auto& [name, values] : want) {
    const std::vector<float>& got = quantized.gradients.at(name);
    ASSERT_EQ(got.size(), values.size()) << name;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], values[i]) << name << " at " << i;
    }
  }
  run.options.executor.quantize = {};
  EXPECT_EQ(Train(run).gradients == want, s.shards() == 1);  // It makes a difference.
}

TEST(QuantizedReduce, OneHopIsTheModel) {
  for (int world = 1; world <= 6; ++world) {
    for (const DType params : {DType::kFloat32, DType::kBFloat16}) {
      for (const Reduce reduce : {Reduce::kInt8, Reduce::kInt4}) {
        ExpectModel({.world = world,
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
        ExpectModel({.world = world,
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
       {std::tuple(4, 2, 0), {6, 2, 0}, {6, 3, 0}, {6, 3, 1}, {8, 2, 2}, {3, 3, 0}}) {
    for (const Reduce reduce : {Reduce::kInt8, Reduce::kInt4}) {
      ExpectModel({.world = world,
                   .inside = inside,
                   .copies = copies,
                   .reduce = reduce,
                   .block = copies == 2 ? 64 : 256,
                   .params = copies == 2 ? DType::kBFloat16 : DType::kFloat32});
    }
  }
}

TEST(QuantizedReduce, EachMicroBatchIsSummedByItself) {
  ExpectModel({.world = 2, .micro_batches = 3});
  ExpectModel({.world = 4, .inside = 2, .reduce = Reduce::kInt4, .micro_batches = 2});
  ExpectModel({.world = 4, .copies = 2, .reduce = Reduce::kInt4, .micro_batches = 2});
}

// One element that is not finite makes its block NaN on all ranks, and such a step changes nothing.
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
      EXPECT_TRUE(std::ranges::all_of(values, [](float x) { return !std::isinf(x); }) ||
                  static_cast<int64_t>(values.size()) < kMinSize)
          << name;
    }
  }
}

// Both hops count as a reduce-scatter, both parts of an exchange between copies as an all-reduce.
TEST(QuantizedReduce, CountsWhatWasPlanned) {
  for (const auto& [world, inside, copies] :
       {std::tuple(3, 0, 1), {4, 2, 1}, {6, 3, 1}, {4, 0, 2}, {8, 2, 2}}) {
    for (const Reduce reduce : {Reduce::kInt8, Reduce::kInt4}) {
      const Setting s{
          .world = world, .inside = inside, .copies = copies, .reduce = reduce, .micro_batches = 2};
      TinyRun run = RunOf(s);
      std::mutex mutex;
      std::vector<TrafficBytes> sent;
      run.on_traffic = [&](int, int64_t step, const TrafficBytes& bytes) {
        std::lock_guard lock(mutex);
        if (step == 1) sent.push_back(bytes);
      };
      Train(run);
      Gpt2 model(run.config);
      run.options.executor.micro_batches = s.micro_batches;
      StepTraffic planned;
      PlanMemory(model, run.options, world, &planned);
      ASSERT_EQ(sent.size(), static_cast<size_t>(world));
      double all_reduced = 0;
      for (const TrafficBytes& bytes : sent) {
        EXPECT_EQ(bytes.of(Collective::kReduceScatter), planned.reduce_scatter_bytes);
        EXPECT_EQ(bytes.of(Collective::kAllToAll), 0);
        all_reduced += static_cast<double>(bytes.of(Collective::kAllReduce)) / world;
      }
      EXPECT_DOUBLE_EQ(all_reduced, planned.all_reduce_bytes);  // Scalars are unequal.
      // Each micro-batch sends each shard once, whatever hops there are.
      const ExecutorOptions& o = run.options.executor;
      const Layout layout = MakeLayout(ShapesOf(model, DTypeRuleOf(o)), o.auto_wrap, s.shards());
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
  const Layout layout = MakeLayout(ShapesOf(model, DTypeRuleOf(o)), o.auto_wrap, hosts * inside);
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
  const Layout layout = MakeLayout(ShapesOf(model, DTypeRuleOf(o)), o.auto_wrap, 4);
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
