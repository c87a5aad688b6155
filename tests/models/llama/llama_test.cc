#include "models/llama/llama.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "models/shape.h"
#include "tests/testing/model_promises.h"
#include "tests/testing/tiny_run.h"

namespace fsdp::testing {
namespace {

std::vector<std::string> Names(const ModelSegment& segment) {
  std::vector<std::string> names;
  for (const Parameter* p : segment.parameters) {
    for (const ParameterSlice& slice : p->slices()) {
      names.push_back(slice.name + " " + slice.shape.ToString() + (slice.decay ? " decays" : ""));
    }
  }
  return names;
}

TEST(Llama, NamesAndShapesAreHuggingFaces) {
  const Llama model(TinyRun::TinyLlama());
  ASSERT_EQ(model.segments().size(), 4u);
  EXPECT_EQ(Names(model.segments()[0]),
            std::vector<std::string>{"model.embed_tokens.weight [101, 24] decays"});
  EXPECT_EQ(
      Names(model.segments()[2]),
      (std::vector<std::string>{
          "model.layers.1.input_layernorm.weight [24]",
          "model.layers.1.self_attn.q_proj.weight [60, 24] decays",
          "model.layers.1.self_attn.k_proj.weight [30, 24] decays",
          "model.layers.1.self_attn.v_proj.weight [30, 24] decays",
          "model.layers.1.self_attn.q_proj.bias [60]", "model.layers.1.self_attn.k_proj.bias [30]",
          "model.layers.1.self_attn.v_proj.bias [30]",
          "model.layers.1.self_attn.q_norm.weight [10]",
          "model.layers.1.self_attn.k_norm.weight [10]",
          "model.layers.1.self_attn.o_proj.weight [24, 60] decays",
          "model.layers.1.self_attn.o_proj.bias [24]",
          "model.layers.1.post_attention_layernorm.weight [24]",
          "model.layers.1.mlp.gate_proj.weight [40, 24] decays",
          "model.layers.1.mlp.up_proj.weight [40, 24] decays",
          "model.layers.1.mlp.gate_proj.bias [40]", "model.layers.1.mlp.up_proj.bias [40]",
          "model.layers.1.mlp.down_proj.weight [24, 40] decays",
          "model.layers.1.mlp.down_proj.bias [24]"}));
  EXPECT_EQ(
      Names(model.segments()[3]),
      (std::vector<std::string>{"model.norm.weight [24]", "lm_head.weight [101, 24] decays"}));
}

// Every parameter there is, once, whatever a shape has or lacks.
TEST(Llama, HasAsManyElementsAsItsConfigSays) {
  for (int bits = 0; bits < 32; ++bits) {
    LlamaConfig config = TinyRun::TinyLlama();
    config.tie_word_embeddings = bits & 1;
    config.attention_bias = bits & 2;
    config.attention_output_bias = bits & 4;
    config.mlp_bias = bits & 8;
    config.qk_norm = bits & 16;
    const Llama model(config);
    int64_t n = 0;
    std::set<std::string> names;
    for (const ModelSegment& segment : model.segments()) {
      for (const Parameter* p : segment.parameters) {
        n += p->shape().NumElements();
        EXPECT_TRUE(names.insert(p->name()).second) << p->name();
      }
    }
    EXPECT_EQ(n, NumParameters(config)) << bits;
  }
}

TEST(Llama, RefusesAShapeWithMistakes) {
  LlamaConfig config = TinyRun::TinyLlama();
  config.num_key_value_heads = 4;
  EXPECT_THROW(MakeModel(config), std::invalid_argument);
}

TinyRun RunOf(bool tied, bool norms) {
  TinyRun run;
  run.llama = TinyRun::TinyLlama();
  run.llama->tie_word_embeddings = tied;
  run.llama->qk_norm = norms;
  run.positions = [](int64_t step, int64_t sample, std::span<int32_t> positions) {
    int32_t at = 0;
    for (size_t i = 0; i < positions.size(); ++i) {
      if ((static_cast<int64_t>(i) + step + 2 * sample) % 5 == 0) at = 0;
      positions[i] = at++;
    }
  };
  return run;
}

// Promise 1 of docs/design.md, section 5.
TEST(Llama, StrategyAndRecomputationChangeNoBit) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    ExpectStrategyAndRecomputationChangeNoBit(RunOf(tied, /*norms=*/tied));
  }
}

TEST(Llama, TheRootChangesNoBit) {
  ExpectTheRootChangesNoBit(RunOf(/*tied=*/false, /*norms=*/true));
}

TEST(Llama, RecomputationKeepsLess) {
  const auto bytes = [](int64_t layers, bool norms, Recompute recompute) {
    TinyRun run;
    run.world = 2;
    run.llama = TinyRun::TinyLlama();
    run.llama->num_hidden_layers = layers;
    run.llama->qk_norm = norms;
    run.options.executor.recompute = recompute;
    return PlannedActivations(run);
  };
  // One more layer keeps, in rows of 22 tokens: 24 columns, 60 of q, 30 of k and of v, 40 of gate
  // and of up.
  const auto layer = [&](bool norms, Recompute recompute) {
    return bytes(9, norms, recompute) - bytes(8, norms, recompute);
  };
  const auto floats = [](std::initializer_list<int64_t> counts) {
    int64_t sum = 0;
    for (const int64_t n : counts) sum += (4 * n + 63) / 64 * 64;  // Blocks begin at 64 bytes.
    return sum;
  };
  constexpr int64_t r = 22;
  EXPECT_EQ(layer(false, Recompute::kFull), floats({r * 24}));
  // The inputs of both norms, qkv, gate and up, and what norms divide by.
  EXPECT_EQ(layer(false, Recompute::kSelective), floats({r * 24, r * 24, r * 120, r * 80, r, r}));
  EXPECT_EQ(layer(true, Recompute::kSelective),
            floats({r * 24, r * 24, r * 120, r * 80, r, r, r * 6, r * 3}));
  // And the results of norms, of attention with its log-sum-exp, and of SwiGLU; q and k as rotated.
  EXPECT_EQ(layer(false, Recompute::kNone),
            floats({r * 24, r * 24, r * 120, r * 80, r, r, r * 24, r * 24, r * 60, r * 6, r * 40}));
  EXPECT_EQ(layer(true, Recompute::kNone),
            floats({r * 24, r * 24, r * 120, r * 80, r, r, r * 24, r * 24, r * 60, r * 6, r * 40,
                    r * 6, r * 3, r * 90}));
}

// A document's results do not depend on what is before it in the row.
TEST(Llama, DocumentsAreApart) {
  TinyRun run = RunOf(false, true);
  run.steps = 1;
  run.positions = [](int64_t, int64_t, std::span<int32_t> positions) {
    for (size_t i = 0; i < positions.size(); ++i) {
      positions[i] = static_cast<int32_t>(i < 5 ? i : i - 5);
    }
  };
  run.logits = {{0, 4}, {0, 5}, {0, 10}};
  const TinyResult before = Train(run);
  run.sample = [sample = SampleOf(run)](int64_t step, int64_t index, std::span<int32_t> tokens,
                                        std::span<float> weights) {
    sample(step, index, tokens, weights);
    for (size_t i = 0; i < 5; ++i) tokens[i] = (tokens[i] + 17) % 101;
  };
  const TinyResult after = Train(run);
  const auto row = [](const TinyResult& result, size_t i) {
    const auto begin = result.logits.begin() + 101 * static_cast<int64_t>(i);
    return std::vector<float>(begin, begin + 101);
  };
  EXPECT_NE(row(after, 0), row(before, 0));
  EXPECT_EQ(row(after, 1), row(before, 1));
  EXPECT_EQ(row(after, 2), row(before, 2));
}

}  // namespace
}  // namespace fsdp::testing
