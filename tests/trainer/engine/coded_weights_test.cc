// A coded weight (ops/weight_codes.h) is a frozen weight with the values that its codes stand for,
// but for what it costs: everything else gets the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/testing/tiny_run.h"
#include "trainer/fsdp/records.h"
#include "trainer/nn/initial_values.h"
#include "trainer/ops/weight_codes.h"

namespace fsdp::testing {
namespace {

// A model whose slices are no multiple of a block, some of several records; the last of q, k and v
// begins behind a record that is partly used.
TinyRun Coded(LoraBase base, BaseScales scales = BaseScales::k8Bit) {
  TinyRun run;
  run.llama = TinyRun::TinyLlama();
  run.llama->intermediate_size = 1501;
  run.lora = LoraOptions{.rank = 3, .base = base, .base_scales = scales};
  run.options.optimizer.kind = OptimizerOptions::Kind::kAdamW;
  run.initial = [seed = run.seed](const Parameter& p, int64_t begin, std::span<float> values) {
    FillInitial(p, seed, begin, values);
  };
  return run;
}

bool IsCoded(const Parameter& parameter, const ParameterSlice& slice) {
  return !parameter.is_adapter() && !parameter.is_plain() && parameter.shape().rank() == 2 &&
         slice.name.find("layers.") != std::string::npos;
}

// The same with plain weights that have the values of the codes.
TinyRun Decoded(TinyRun run) {
  const WeightCode code = run.lora->code();
  run.lora->base = LoraBase::kNone;
  run.initial = [code, read = run.initial](const Parameter& p, int64_t begin,
                                           std::span<float> values) {
    read(p, begin, values);
    for (const SlicePiece& piece : SlicePieces(p, begin, std::ssize(values))) {
      if (!IsCoded(p, *piece.slice)) continue;
      std::vector<float> all(static_cast<size_t>(piece.slice->shape.NumElements()));
      read(p, piece.slice->begin, all);
      std::vector<uint8_t> records(static_cast<size_t>(CodedBytes(code, std::ssize(all))));
      std::vector<float> scales(static_cast<size_t>(BlocksOf(*piece.slice)));
      EncodeRecords(code, all, records.data(), scales);
      if (code == WeightCode::kNf4Nested) {
        double sum = 0;
        for (size_t at = 0; at < scales.size(); at += kRecordBlocks) {
          const size_t count = std::min<size_t>(kRecordBlocks, scales.size() - at);
          sum += SumScales(std::span<const float>(scales).subspan(at, count));
        }
        const auto mean = static_cast<float>(sum / static_cast<double>(scales.size()));
        EncodeScales(mean, scales, records.data());
      }
      DecodeRecords(code, records.data(), all);
      std::copy_n(all.begin() + piece.begin, piece.count, values.begin() + piece.at);
    }
  };
  return run;
}

void ExpectSame(const TinyResult& got, const TinyResult& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.grad_norms, want.grad_norms);
  EXPECT_EQ(got.eval_loss, want.eval_loss);
  EXPECT_EQ(got.gradients, want.gradients);
  EXPECT_EQ(got.state, want.state);
  for (const auto& [name, values] : got.parameters) {
    EXPECT_EQ(values, want.parameters.at(name)) << name;
  }
  EXPECT_LT(got.parameters.size(), want.parameters.size());
}

struct Form {
  LoraBase base;
  BaseScales scales;
};
constexpr Form kForms[] = {{LoraBase::kNf4, BaseScales::k8Bit},
                           {LoraBase::kNf4, BaseScales::kFp32},
                           {LoraBase::kInt8, BaseScales::kFp32}};

TEST(CodedWeights, AreFrozenWeightsWithTheValuesOfTheirCodes) {
  for (const Form& form : kForms) {
    TinyRun run = Coded(form.base, form.scales);
    for (const int world : {1, 2, 3, 5}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(run.lora->code())) + ", world " +
                   std::to_string(world));
      run.world = world;
      ExpectSame(Train(run), Train(Decoded(run)));
    }
  }
}

// Each expert's matrices are slices of their own; routers and the shared expert's gate stay plain.
TEST(CodedWeights, HoldExperts) {
  TinyRun run = Coded(LoraBase::kNf4);
  run.moe = TinyRun::TinyMoe();
  run.moe->moe_intermediate_size = 700;
  for (const int world : {1, 3}) {
    run.world = world;
    ExpectSame(Train(run), Train(Decoded(run)));
  }
}

// Codes, and with them all losses of one world, do not depend on how the weights are spread.
TEST(CodedWeights, AreTheSameHoweverTheyAreSpread) {
  TinyRun run = Coded(LoraBase::kNf4);
  run.world = 4;
  const TinyResult want = Train(run);
  const std::vector<std::function<void(ExecutorOptions&)>> changes = {
      [](ExecutorOptions& o) { o.sharding_strategy = Strategy::kNoShard; },
      [](ExecutorOptions& o) { o.sharding_strategy = Strategy::kShardGradOp; },
      [](ExecutorOptions& o) {
        o.sharding_strategy = Strategy::kHybridShard;
        o.shard_size = 2;
      },
      [](ExecutorOptions& o) { o.auto_wrap.policy = AutoWrap::kNone; },
      [](ExecutorOptions& o) { o.recompute = Recompute::kFull; },
      [](ExecutorOptions& o) { o.backward_prefetch = BackwardPrefetch::kPost; },
      [](ExecutorOptions& o) { o.cpu_offload.params = o.cpu_offload.optimizer = true; },
      [](ExecutorOptions& o) {
        o.buffers = FsdpOptions::Buffers::kCaching;
        o.limiter = FsdpOptions::Limiter::kHost;
      },
      // They are gathered as they are.
      [](ExecutorOptions& o) { o.quantize.gather = FsdpOptions::Quantize::Gather::kInt8; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    TinyRun other = run;
    changes[i](other.options.executor);
    const TinyResult got = Train(other);
    EXPECT_EQ(got.coded, want.coded);
    if (i + 1 < changes.size()) {
      EXPECT_EQ(got.losses, want.losses);
    }
  }
  for (const int world : {1, 3, 8}) {
    TinyRun other = run;
    other.world = world;
    EXPECT_EQ(Train(other).coded, want.coded) << world;
  }
  run.seed = 8;
  run.initial = Coded(LoraBase::kNf4).initial;
  EXPECT_EQ(Train(run).coded, want.coded);
  run.initial = [](const Parameter& p, int64_t begin, std::span<float> values) {
    FillInitial(p, 8, begin, values);
  };
  EXPECT_NE(Train(run).coded, want.coded);
}

TEST(CodedWeights, HalfThePrecisionReadsThemInBf16) {
  for (const Form& form : kForms) {
    TinyRun run = Coded(form.base, form.scales);
    run.world = 2;
    run.options.executor.mixed_precision.param_dtype = DType::kBFloat16;
    ExpectSame(Train(run), Train(Decoded(run)));
  }
}

// Without adapters: what optimizer.groups freezes.
TEST(CodedWeights, RankZeroEncodesFrozenGroups) {
  TinyRun run = Coded(LoraBase::kNf4);
  run.lora->rank = 0;
  run.options.optimizer.groups.push_back({"model.layers.0.*", std::nullopt, 1, /*frozen=*/true});
  run.world = 2;
  const TinyResult got = Train(run);
  EXPECT_TRUE(got.gradients.contains("model.layers.1.mlp.down_proj.weight"));
  EXPECT_FALSE(got.parameters.contains("model.layers.0.mlp.down_proj.weight"));
  EXPECT_TRUE(got.parameters.contains("model.layers.0.input_layernorm.weight"));
}

}  // namespace
}  // namespace fsdp::testing
