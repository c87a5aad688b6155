#include "trainer/bench/op_bench.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

namespace fsdp {
namespace {

const OpBenchOptions kTiny{
    .shapes = {.batch = 2, .seq = 5, .hidden = 12, .intermediate = 28, .heads = 2, .vocab = 37},
    .threads = 2,
    .seconds = 0};

TEST(OpBench, CostsAreWhatTheOpsState) {
  const double rows = 10, hidden = 12, inner = 28, vocab = 37;
  const auto flops = [](const std::string& op) { return CostOfOp(kTiny, op).flops; };
  EXPECT_EQ(flops("linear up, forward"), 2 * rows * hidden * inner + rows * inner);
  EXPECT_EQ(flops("linear up, backward"), 4 * rows * hidden * inner + rows * inner);
  EXPECT_EQ(flops("linear down and residual, forward"),
            2 * rows * hidden * inner + 2 * rows * hidden);
  EXPECT_EQ(flops("attention, forward"), 2 * 2 * 2 * 5 * 6 * 6);
  EXPECT_EQ(flops("attention, backward"), 5 * 2 * 2 * 5 * 6 * 6);
  const double pairs = 2 * 2 * 5 * 5;  // Two heads of 6.
  EXPECT_EQ(flops("attention by math, forward"), pairs * (4 * 6 + 5));
  EXPECT_EQ(flops("attention by math, backward"), pairs * (8 * 6 + 5));
  EXPECT_EQ(flops("attention by math, heads mixed, forward"), pairs * (4 * 6 + 5 + 2 * 2 + 8));
  EXPECT_EQ(flops("attention by math, heads mixed, backward"), pairs * (8 * 6 + 5 + 6 * 2 + 20));
  EXPECT_EQ(flops("layer_norm, forward"), 8 * rows * hidden);
  EXPECT_EQ(flops("rms_norm, backward"), 10 * rows * hidden);
  EXPECT_EQ(flops("gelu, backward"), 35 * rows * inner);
  EXPECT_EQ(flops("relu, forward"), rows * inner);
  EXPECT_EQ(flops("sigmoid, backward"), 3 * rows * inner);
  EXPECT_EQ(flops("gelu_exact, forward"), 42 * rows * inner);
  EXPECT_EQ(flops("swiglu, forward"), 20 * rows * inner);
  EXPECT_EQ(flops("geglu, backward"), 39 * rows * inner);
  EXPECT_EQ(flops("class loss"), 4 * rows * hidden);
  const double expert = 2 * (4 * rows) * hidden * 3;  // Four experts a token, 28 / 8 wide.
  EXPECT_EQ(flops("experts up, zipf, forward"), 2 * expert);
  EXPECT_EQ(flops("experts down, dw"), expert);
  EXPECT_EQ(flops("one expert up, backward"), 4 * expert);
  EXPECT_EQ(flops("weighted swiglu, backward"), 29 * 4 * rows * 3);
  EXPECT_EQ(flops("binary loss"), 40 * rows);
  EXPECT_EQ(flops("head and loss"), 6 * rows * hidden * vocab + 4 * rows * vocab);
  const double block = 4 * hidden * hidden + 2 * hidden * inner;
  EXPECT_EQ(flops("adamw"), 16 * block);
  EXPECT_EQ(flops("quantize, int8"), 2 * block);
  EXPECT_EQ(flops("dequantize, int4"), block);
  EXPECT_EQ(flops("dequantize and sum, int8"), 7 * block);
  EXPECT_EQ(flops("copy"), 0);
}

TEST(OpBench, BytesAreThoseReadAndWritten) {
  const double rows = 10, hidden = 12, inner = 28;
  const double block = 4 * hidden * hidden + 2 * hidden * inner;
  EXPECT_EQ(CostOfOp(kTiny, "copy").bytes, 8 * block);
  EXPECT_EQ(CostOfOp(kTiny, "fill").bytes, 4 * block);
  EXPECT_EQ(CostOfOp(kTiny, "add").bytes, 12 * rows * hidden);
  EXPECT_EQ(CostOfOp(kTiny, "gelu, forward").bytes, 8 * rows * inner);
  EXPECT_EQ(CostOfOp(kTiny, "swiglu, forward").bytes, 12 * rows * inner);
  OpBenchOptions halves = kTiny;
  halves.dtype = DType::kBFloat16;
  EXPECT_EQ(CostOfOp(halves, "add").bytes, 6 * rows * hidden);
  EXPECT_EQ(CostOfOp(halves, "adamw").bytes, CostOfOp(kTiny, "adamw").bytes);
}

TEST(OpBench, MeasuresEveryOpOnce) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    OpBenchOptions options = kTiny;
    options.dtype = dtype;
    std::vector<std::string> names;
    const std::vector<OpTime> times = MeasureOps(options, [&](const OpTime& op) {
      names.push_back(op.name);
      EXPECT_GT(op.seconds, 0) << op.name;
      EXPECT_GT(op.cost.bytes, 0) << op.name;
    });
    EXPECT_EQ(names, BenchedOps(options));
    EXPECT_EQ(times.size(), names.size());
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  }
}

TEST(OpBench, OnlyThoseThatAreAskedFor) {
  OpBenchOptions options = kTiny;
  options.only = "gelu, ";
  EXPECT_EQ(MeasureOps(options, nullptr).size(), 4u);
  options.only = "nothing";
  EXPECT_THROW(MeasureOps(options, nullptr), std::invalid_argument);
  EXPECT_THROW(CostOfOp(options, "nothing"), std::invalid_argument);
}

TEST(OpBench, HeadsDivideTheWidth) {
  OpBenchOptions options = kTiny;
  options.shapes.heads = 5;
  EXPECT_THROW(BenchedOps(options), std::invalid_argument);
  options.shapes.heads = 4;  // Three a head: rotary positions want pairs.
  EXPECT_THROW(BenchedOps(options), std::invalid_argument);
}

TEST(OpBench, LimitIsTheLongerOfComputeAndCopies) {
  const OpLimits limits{.flops_per_s = 100, .bytes_per_s = 10};
  EXPECT_DOUBLE_EQ(limits.Seconds({.flops = 1000, .bytes = 50}), 10);
  EXPECT_DOUBLE_EQ(limits.Seconds({.flops = 100, .bytes = 50}), 5);
}

}  // namespace
}  // namespace fsdp
