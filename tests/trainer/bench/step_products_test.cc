#include "trainer/bench/step_products.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>

#include "trainer/engine/step_operations.h"
#include "trainer/loop/place.h"
#include "trainer/loop/resolve.h"
#include "trainer/loop/setup.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

constexpr char kGpt2[] =
    "model: {family: gpt2, hidden_size: 24, intermediate_size: 40, num_hidden_layers: 3,\n"
    "  num_attention_heads: 2, vocab_size: 101, max_position_embeddings: 32}\n"
    "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
    "train: {micro_batch_size: 2, global_batch_size: 8}\n";
constexpr char kLlama[] =
    "model: {family: llama, hidden_size: 24, intermediate_size: 40, num_hidden_layers: 2,\n"
    "  num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8, vocab_size: 101,\n"
    "  max_position_embeddings: 32}\n"
    "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
    "train: {micro_batch_size: 2, global_batch_size: 8}\n";

// Each token is sent to 2 of 5 experts.
constexpr char kMoe[] =
    "model: {family: moe, hidden_size: 24, moe_intermediate_size: 20, num_hidden_layers: 2,\n"
    "  num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8, vocab_size: 101,\n"
    "  max_position_embeddings: 32, num_experts: 5, num_experts_per_tok: 2}\n"
    "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
    "train: {micro_batch_size: 2, global_batch_size: 8}\n";

Recipe Parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return ParseRecipe({{"test.yaml", text}}, overrides);
}

StepWork StepWorkOf(const Recipe& recipe, int world) {
  return StepWorkOf(Resolve(recipe, PlaceToBench(world, DeviceType::kCpu)));
}

double ProductFlops(const StepWork& work) {
  double flops = 0;
  for (const StepProduct& p : work.products) flops += p.flops();
  return flops;
}

const StepProduct& Find(const StepWork& work, const std::string& name) {
  for (const StepProduct& p : work.products) {
    if (p.name == name) return p;
  }
  throw std::runtime_error("no product " + name);
}

TEST(StepProducts, AreSixFlopsForEveryWeightAndToken) {
  // 8 sequences of 16 tokens; 24 (72 + 24 + 40 + 40) weights a layer, 3 layers, and the head.
  const StepWork work = StepWorkOf(Parse(kGpt2), /*world=*/1);
  const double tokens = 8 * 16;
  EXPECT_EQ(ProductFlops(work), 6 * tokens * (3 * 24 * 176 + 101 * 24));
  EXPECT_EQ(work.attention_flops, 6 * tokens * (3 * 24 * 16));
}

TEST(StepProducts, OfGroupedQueriesAndAnUntiedHead) {
  // qkv: 24 x (32 + 16 + 16), o: 32 x 24, gate_up: 24 x 80, down: 40 x 24; embeddings are looked
  // up.
  const StepWork work = StepWorkOf(Parse(kLlama), /*world=*/1);
  const double tokens = 8 * 16;
  EXPECT_EQ(ProductFlops(work),
            6 * tokens * (2 * (24 * 64 + 32 * 24 + 24 * 80 + 40 * 24) + 101 * 24));
  EXPECT_EQ(work.attention_flops, 6 * tokens * (2 * 32 * 16));
}

TEST(StepProducts, AreWhatMfuCounts) {
  for (const char* text : {kGpt2, kLlama, kMoe}) {
    const Recipe recipe = Parse(text);
    const auto model = BuildModel(recipe, ShapeFor(recipe));
    const StepWork work = StepWorkOf(recipe, 1);
    EXPECT_EQ(ProductFlops(work) + work.attention_flops, 8 * FlopsPerSample(*model, 16));
    const StepWork math = StepWorkOf(Parse(text, {"train.attention=math"}), 1);
    EXPECT_EQ(math.attention_flops, work.attention_flops);
    EXPECT_EQ(ProductFlops(math), ProductFlops(work));
  }
}

TEST(StepProducts, HaveTheShapesOfTheOps) {
  const StepWork gpt2 = StepWorkOf(Parse(kGpt2), 1);  // Four micro-batches of 32 rows.
  const StepProduct& forward = Find(gpt2, "linear 24 to 72, forward");
  EXPECT_EQ(forward.m, 32);
  EXPECT_EQ(forward.n, 72);
  EXPECT_EQ(forward.k, 24);
  EXPECT_FALSE(forward.b_transposed);  // Conv1D: [in, out].
  EXPECT_EQ(forward.count, 3 * 4);
  const StepProduct& dw = Find(gpt2, "linear 24 to 72, dw");
  EXPECT_EQ(dw.m, 24);
  EXPECT_EQ(dw.n, 72);
  EXPECT_TRUE(dw.adds);
  const StepWork llama = StepWorkOf(Parse(kLlama), 1);
  EXPECT_TRUE(Find(llama, "linear 24 to 64, forward").b_transposed);  // nn.Linear: [out, in].
  EXPECT_EQ(Find(llama, "linear 24 to 64, dw").m, 64);
  EXPECT_EQ(Find(llama, "head, logits").m, 32);
  EXPECT_EQ(Find(llama, "head, logits").n, 101);
}

TEST(StepProducts, OfExpertsHaveGroups) {
  const StepWork work = StepWorkOf(Parse(kMoe), 1);
  const StepProduct &up = Find(work, "experts 24 to 40, forward"),
                    &dx = Find(work, "experts 20 to 24, dx"),
                    &dw = Find(work, "experts 20 to 24, dw");
  for (const StepProduct* p : {&up, &dx, &dw}) EXPECT_EQ(p->groups, 5) << p->name;
  EXPECT_EQ(std::pair(up.m, up.n), std::pair(int64_t{32 * 2}, int64_t{40}));
  EXPECT_EQ(std::pair(dx.m, dx.n), std::pair(int64_t{32 * 2}, int64_t{20}));
  EXPECT_EQ(std::tuple(dw.m, dw.n, dw.k), std::tuple(24, 20, 32 * 2));
  EXPECT_EQ(Find(work, "linear 24 to 5, forward").groups, 1);
  for (const std::string dtype : {"bf16", "fp16"}) {
    StepProductsBench bench(
        StepWorkOf(Parse(kMoe, {"fsdp.mixed_precision.param_dtype=" + dtype}), 1), /*threads=*/2);
    for (const double s : bench.Run()) EXPECT_GT(s, 0);
  }
}

// In bf16 the head's logits are fp32, and gradients as the run adds them up.
TEST(StepProducts, HaveTheResultsOfTheOps) {
  const StepWork work =
      StepWorkOf(Parse(kGpt2, {"fsdp.mixed_precision.param_dtype=bf16"}), /*world=*/1);
  for (const StepProduct& p : work.products) {
    EXPECT_EQ(p.dtype, DType::kBFloat16) << p.name;
    const bool fp32 = p.name == "head, logits" || p.name.ends_with("dw");
    EXPECT_EQ(p.result, fp32 ? DType::kFloat32 : DType::kBFloat16) << p.name;
  }
  StepProductsBench bench(work, /*threads=*/2);
  for (size_t i = 0; i < work.products.size(); ++i) EXPECT_GT(bench.Run(i), 0);
}

TEST(StepProducts, AreOneRanksShare) {
  const double one = ProductFlops(StepWorkOf(Parse(kGpt2), 1));
  EXPECT_EQ(ProductFlops(StepWorkOf(Parse(kGpt2), 4)), one / 4);
  // Three ranks: two rounds each, though some of their places are empty.
  EXPECT_EQ(ProductFlops(StepWorkOf(Parse(kGpt2), 3)), one / 2);
}

// A step's products lack what it does not compute, and have twice what it computes twice.
TEST(StepProducts, OfOtherSteps) {
  const double tokens = 8 * 16, blocks = 3 * 24 * 176, head = 101 * 24;
  const auto flops = [](const std::vector<std::string>& overrides) {
    return ProductFlops(StepWorkOf(Parse(kGpt2, overrides), 1));
  };
  EXPECT_EQ(flops({"train.activation_checkpointing=full"}), (8 * blocks + 6 * head) * tokens);
  EXPECT_EQ(flops({"optimizer.groups=[{match: '*wte*', frozen: true}]"}),
            (6 * blocks + 4 * head) * tokens);
}

TEST(StepProducts, AttentionTakesItsFlopsAtTheirRate) {
  StepProductsBench bench(
      {.products = {{"p", 8, 8, 8, false, false, false, 2}}, .attention_flops = 1024}, 1);
  // The two calls are 2048 FLOPs: attention takes half as long again.
  EXPECT_DOUBLE_EQ(bench.StepSeconds({2.0}), 3.0);
}

TEST(StepProducts, RunTimesEveryOne) {
  for (const char* text : {kGpt2, kLlama, kMoe}) {
    StepProductsBench bench(StepWorkOf(Parse(text), 1), /*threads=*/2);
    const std::vector<double> seconds = bench.Run();
    ASSERT_EQ(seconds.size(), bench.work().products.size());
    for (const double s : seconds) EXPECT_GT(s, 0);
  }
}

}  // namespace
}  // namespace fsdp
