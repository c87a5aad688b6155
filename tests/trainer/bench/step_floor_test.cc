#include "trainer/bench/step_floor.h"

#include <gtest/gtest.h>

#include <string>

#include "trainer/bench/step_products.h"
#include "trainer/core/errors.h"
#include "trainer/recipe/load.h"

namespace fsdp {
namespace {

constexpr char kLlama[] =
    "model: {family: llama, hidden_size: 24, intermediate_size: 40, num_hidden_layers: 2,\n"
    "  num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8, vocab_size: 101,\n"
    "  max_position_embeddings: 32}\n"
    "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
    "train: {micro_batch_size: 2, global_batch_size: 8}\n";
const std::string kHalves =
    "fsdp.mixed_precision={param_dtype: bf16, grad_dtype: bf16, reduce_dtype: bf16, "
    "master_dtype: bf16}";
constexpr double kFast = 1e30;  // What has this rate takes no time.

Recipe Parse(const std::vector<std::string>& overrides = {}) {
  return ParseRecipe({{"test.yaml", kLlama}}, overrides);
}

Hardware Machine() {
  Hardware machine;
  machine.name = "a machine";
  machine.bf16_flops = machine.fp32_flops = kFast;
  machine.attention_forward_flops = machine.attention_backward_flops = kFast;
  machine.copy_bytes_per_s = kFast;
  return machine;
}

const FloorPart& Find(const StepFloor& floor, const std::string& op) {
  for (const FloorPart& part : floor.parts) {
    if (part.op == op) return part;
  }
  throw std::runtime_error("no op " + op);
}

TEST(StepFloor, ProductsTakeTheirFlops) {
  const StepWork work = StepWorkOf(Parse(), /*world=*/1);
  double flops = 0;
  for (const StepProduct& p : work.products) flops += p.flops();
  Hardware machine = Machine();
  machine.fp32_flops = 1e6;
  const StepFloor floor = FloorOf(Parse(), 1, machine);
  EXPECT_NEAR(floor.Seconds(true), flops / 1e6, 1e-9 * flops / 1e6);
  EXPECT_EQ(floor.tokens, 8 * 16);
  // Four micro-batches of two layers; each has qkv, o, gate and up, down.
  EXPECT_EQ(Find(floor, "linear_forward").launches.kernels, 4 * 2 * 2);
  EXPECT_EQ(Find(floor, "linear_residual_forward").launches.kernels, 4 * 2 * 2);
  EXPECT_EQ(Find(floor, "linear_backward, dw").launches.kernels, 4 * 2 * 4);
  // Of two bf16 at their own rate.
  machine.fp32_flops = kFast;
  machine.bf16_flops = 1e6;
  EXPECT_NEAR(FloorOf(Parse({kHalves}), 1, machine).Seconds(true), flops / 1e6, 1e-9 * flops / 1e6);
}

TEST(StepFloor, AttentionHasRatesOfItsOwn) {
  Hardware machine = Machine();
  machine.attention_forward_flops = 1e6;
  // Four products... of [16, 17 / 2] pairs of tokens, by 4 heads of 8.
  const double pairs = 8 * 4 * 16 * 17 / 2.0;
  EXPECT_NEAR(FloorOf(Parse(), 1, machine).Seconds(true), 2 * pairs * 2 * 2 * 8 / 1e6, 1e-6);
  machine = Machine();
  machine.attention_backward_flops = 1e6;
  EXPECT_NEAR(FloorOf(Parse(), 1, machine).Seconds(true), 2 * pairs * 5 * 2 * 8 / 1e6, 1e-6);
}

TEST(StepFloor, AllElseTakesItsBytes) {
  Hardware machine = Machine();
  machine.copy_bytes_per_s = 1e6;
  const StepFloor floor = FloorOf(Parse(), 1, machine);
  for (const FloorPart& part : floor.parts) {
    EXPECT_NEAR(part.seconds, part.bytes / 1e6, 1e-9) << part.op;
  }
  EXPECT_EQ(Find(floor, "rms_norm_forward").launches.kernels, 4 * (2 * 2 + 1));
  // A norm reads and writes 8 x 16 rows of 24, its weight, and writes a number a row.
  EXPECT_EQ(Find(floor, "rms_norm_forward").bytes,
            (2 * 2 + 1) * (4 * 8 * 16 * (2 * 24 + 1) + 4 * 4 * 24));
  // What others could do on their way is apart.
  EXPECT_FALSE(Find(floor, "fill").in_the_floor);
  EXPECT_GT(floor.Seconds(false), 0);
  double beside = 0;
  for (const FloorPart& part : floor.parts) beside += part.in_the_floor ? 0 : part.bytes / 1e6;
  EXPECT_NEAR(floor.Seconds(false), beside, 1e-9);
}

TEST(StepFloor, SaysWhichRateIsMissing) {
  Hardware machine = Machine();
  machine.fp32_flops.reset();
  EXPECT_NO_THROW(FloorOf(Parse({kHalves}), 1, machine));
  try {
    FloorOf(Parse(), 1, machine);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("a machine has no fp32_flops, and this step has "),
              std::string::npos)
        << error.what();
  }
}

// What a rank sends to others is listed, and counts for nothing.
TEST(StepFloor, OfSeveralRanks) {
  const StepFloor floor = FloorOf(Parse(), 2, Machine());
  EXPECT_EQ(floor.tokens, 8 * 16);
  EXPECT_EQ(Find(floor, "linear_forward").launches.kernels, 2 * 2 * 2);
  // Three ranks: two rounds each, though some of their places are empty.
  EXPECT_EQ(FloorOf(Parse(), 3, Machine()).tokens, 8 * 16);
  EXPECT_GT(Find(floor, "all_gather").link_bytes, 0);
}

}  // namespace
}  // namespace fsdp
