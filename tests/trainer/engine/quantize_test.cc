// Gathers of quantised weights: every rank computes with what a model of the blocks says, and no
// setting has a say in it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "tests/testing/tiny_run.h"
#include "tests/trainer/ops/quantize_model.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/quantized_collectives.h"
#include "trainer/fsdp/try_collectives.h"

namespace fsdp {
namespace {

using testing::FirstDifference;
using testing::TinyResult;
using testing::TinyRun;
using testing::Train;
using Gather = FsdpOptions::Quantize::Gather;

constexpr int64_t kMinSize = 700;  // Some matrices of the tiny model are smaller.

TinyRun QuantizedRun(int world, Gather gather, int block) {
  TinyRun run;
  run.world = world;
  run.steps = 1;
  run.options.executor.quantize = {.gather = gather, .block = block, .min_size = kMinSize};
  return run;
}

// Any numbers of any size, the same for all ranks; some blocks are zeros.
float Value(const Parameter& p, int64_t element) {
  const uint64_t bits =
      (static_cast<uint64_t>(element) + 17 * p.name().size()) * 0x9e3779b97f4a7c15u;
  if (element / 64 % 5 == 3) return 0;
  const int exponent = static_cast<int>(bits >> 8 & 3) - 6;
  return std::ldexp(static_cast<float>(bits >> 40) * 0x1p-23f - 1, exponent);
}

float Round(float x, DType dtype) {
  if (dtype == DType::kFloat32) return x;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&x, &bits, sizeof(bits));
  return x;
}

// A whole parameter as it arrives.
std::vector<float> Arriving(const Parameter& p, const TinyRun& run) {
  const ExecutorOptions& o = run.options.executor;
  const DType dtype = o.mixed_precision.param_dtype;
  const auto form = o.quantize.gather == Gather::kInt8 ? QuantizedForm::kInt8 : QuantizedForm::kFp8;
  const int64_t size = p.shape().NumElements();
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = Round(Value(p, i), dtype);
  if (p.shape().rank() < 2 || size < kMinSize) return values;
  for (int64_t begin = 0; begin < size;) {
    const int64_t end = std::min(size, begin + o.quantize.block);
    const float scale = ModelScale(form, {values.begin() + begin, values.begin() + end});
    for (; begin < end; ++begin) {
      const int code = ModelCode(form, values[begin], scale);
      values[begin] = Round(ModelValue(form, code, scale), dtype);
    }
  }
  return values;
}

// The same run on weights that are what arrives already, not quantised.
TinyResult OnWhatArrives(TinyRun run) {
  std::map<std::string, std::vector<float>> values;
  const Gpt2 model(run.config);
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) values[p->name()] = Arriving(*p, run);
  }
  run.options.executor.quantize = {};
  run.initial = [values](const Parameter& p, int64_t begin, std::span<float> part) {
    std::copy_n(values.at(p.name()).begin() + begin, part.size(), part.begin());
  };
  return Train(run);
}

TEST(Quantize, RanksComputeWithWhatArrives) {
  for (const auto gather : {Gather::kInt8, Gather::kFp8}) {
    for (const int world : {2, 3, 5}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        TinyRun run = QuantizedRun(world, gather, world == 3 ? 64 : 256);
        run.options.executor.mixed_precision.param_dtype = dtype;
        run.initial = [](const Parameter& p, int64_t begin, std::span<float> values) {
          for (size_t i = 0; i < values.size(); ++i) {
            values[i] = Value(p, begin + static_cast<int64_t>(i));
          }
        };
        const TinyResult quantized = Train(run), model = OnWhatArrives(run);
        EXPECT_EQ(quantized.losses, model.losses) << world;
        EXPECT_EQ(quantized.gradients, model.gradients) << world;
        run.options.executor.quantize = {};
        EXPECT_NE(Train(run).gradients, model.gradients);  // It makes a difference.
      }
    }
  }
}

// Blocks are a parameter's own: wrapping and freezing do not move them.
TEST(Quantize, LossesAreThoseOfAnyLayout) {
  const WrapPolicy wraps[] = {{}, {AutoWrap::kNone}, {AutoWrap::kSize, 6000}};
  for (const auto& [world, gather, block] :
       {std::tuple(2, Gather::kInt8, 256), {3, Gather::kFp8, 256}, {3, Gather::kInt8, 64}}) {
    std::optional<std::pair<float, float>> first;
    for (const WrapPolicy& wrap : wraps) {
      for (const char* frozen : {"", "*mlp*", "*attn*", "*wte*", "*h.1.*"}) {
        TinyRun run = QuantizedRun(world, gather, block);
        run.options.executor.auto_wrap = wrap;
        run.options.lr.lr = 0;
        if (*frozen != '\0') run.options.optimizer.groups = {{frozen, std::nullopt, 1, true}};
        const TinyResult result = Train(run);
        const std::pair losses(result.losses.at(0), result.eval_loss);
        if (!first) first = losses;
        EXPECT_EQ(losses, *first) << world << " ranks, frozen `" << frozen << "`";
      }
    }
  }
}

// Masters are exact: what is not touched by an update is what it was.
TEST(Quantize, MastersAreNotRounded) {
  TinyRun run = QuantizedRun(2, Gather::kInt8, 256);
  run.options.lr = {LrShape::kConstant, 0, 0, 100, 0.1};
  const TinyResult result = Train(run);
  EXPECT_EQ(result.parameters, result.initial);
}

TEST(Quantize, ANaNArrivesAsOne) {
  TinyRun run = QuantizedRun(2, Gather::kInt8, 256);
  run.initial = [](const Parameter& p, int64_t begin, std::span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t element = begin + static_cast<int64_t>(i);
      values[i] = element == 300 && p.shape().rank() > 1 ? NAN : Value(p, element);
    }
  };
  EXPECT_TRUE(std::isnan(Train(run).losses.at(0)));
}

// With block 256 half the bytes of bf16 and a sixty-fourth more, where shards are large.
TEST(Quantize, SendsHalfOfBF16) {
  Gpt2Config config = TinyRun::TinyConfig();
  config.hidden_size = 192;
  config.intermediate_size = 768;
  const Gpt2 model(config);
  ExecutorOptions o;
  o.mixed_precision.param_dtype = DType::kBFloat16;
  const auto bytes = [&] {
    const Layout layout = LayoutFor(o, model, 4);
    int64_t sent = 0;
    for (const int f : layout.units[1].flat_parameters) {
      const FlatParameter& flat = layout.flat_parameters[f];
      const int64_t quantized = QuantizedBytes(flat, o.quantize);
      sent += quantized > 0 ? quantized : flat.size * SizeOf(flat.dtypes.compute);
    }
    return static_cast<double>(sent);
  };
  const double plain = bytes();
  o.quantize.min_size = 1000;
  for (const auto gather : {Gather::kInt8, Gather::kFp8}) {
    o.quantize.gather = gather;
    EXPECT_LT(bytes(), 0.52 * plain);
    EXPECT_GT(bytes(), 0.5 * plain);
  }
  // Nothing is large enough.
  o.quantize.min_size = int64_t{1} << 30;
  EXPECT_EQ(bytes(), plain);
}

// The largest call that comes is one of bytes.
TEST(Quantize, IsTriedAsItTravels) {
  const Gpt2 model(TinyRun::TinyConfig());
  ExecutorOptions o;
  o.quantize = {.gather = Gather::kInt8, .min_size = kMinSize};
  const Mesh mesh = MeshFor(o, /*rank=*/0, /*world=*/2);
  const Layout layout = LayoutFor(o, model, 2);
  int64_t most = 0;
  for (const FlatParameter& flat : layout.flat_parameters) {
    most = std::max(most, QuantizedBytes(flat, o.quantize) / 2);
  }
  const auto sizes = LargestCollectives(layout, o, mesh).at(Group::kGather);
  const Communicator::Size wanted{Collective::kAllGather, DType::kUInt8, DType::kUInt8, most};
  EXPECT_GT(most, 0);
  EXPECT_TRUE(std::ranges::find(sizes, wanted) != sizes.end());
}

}  // namespace
}  // namespace fsdp
