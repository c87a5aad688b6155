#include "trainer/simulate/price_list.h"

#include <gtest/gtest.h>

#include "trainer/ops/tiled_attention.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// Bytes are dear, launches cost as much as 100 of them; numbers are exact.
Hardware Machine() {
  Hardware hardware;
  hardware.name = "a machine";
  hardware.fp32_flops = 1024;
  hardware.copy_bytes_per_s = 128;
  hardware.attention_forward_flops = 64;
  hardware.attention_backward_flops = 32;
  hardware.attention_64_forward_flops = 16;
  hardware.launch_s = 0.5;
  return hardware;
}

double Seconds(const Hardware& hardware, const char* op, const KernelCost& kernel) {
  Operation operation;
  operation.name = op;
  operation.costs = {kernel};
  return PriceList(hardware, /*deterministic=*/false).WorkOf(operation, "compute", 1).seconds;
}

KernelCost Attention(int64_t head_dim, const char* name, int64_t count) {
  KernelCost kernel(KernelKind::kAttention, Cost{.flops = 128}, {.launches = 1});
  kernel.product = {.name = name, .m = 4, .n = 4, .k = head_dim, .count = count};
  return kernel;
}

TEST(PriceList, AStepReachesAShareOfItsRates) {
  Hardware hardware = Machine();
  const KernelCost copy(KernelKind::kMemory, Cost{.bytes_read = 256, .bytes_written = 256},
                        {.launches = 3});
  EXPECT_EQ(Seconds(hardware, "copy", copy), 4 + 1.5);
  hardware.reached = 0.5;  // Launches are what they are.
  EXPECT_EQ(Seconds(hardware, "copy", copy), 8 + 1.5);
  hardware.unfused_bytes = 2;
  EXPECT_EQ(Seconds(hardware, "copy", copy), 16 + 1.5);
  hardware.op_bytes_per_s["gelu"] = 32;
  EXPECT_EQ(Seconds(hardware, "gelu", copy), 64 + 1.5);
}

TEST(PriceList, AttentionInTilesHasTheRateOfItsHeads) {
  EXPECT_EQ(Seconds(Machine(), "attention_forward", Attention(128, kTiledAttention, 2)), 2 + 0.5);
  EXPECT_EQ(Seconds(Machine(), "attention_backward", Attention(128, kTiledAttention, 4)), 4 + 0.5);
  EXPECT_EQ(Seconds(Machine(), "attention_forward", Attention(64, kTiledAttention, 2)), 8 + 0.5);
}

// Where the scores are kept, the heads' small products are in flight together.
TEST(PriceList, HeadsFillTheWavesTogether) {
  Hardware hardware = Machine();
  hardware.copy_bytes_per_s = 1e30;
  hardware.multiprocessors = 64;
  hardware.launch_s = 0;
  const auto seconds = [&](int64_t heads) {
    return Seconds(hardware, "attention_math_forward", Attention(128, "", heads));
  };
  EXPECT_DOUBLE_EQ(seconds(64), seconds(1));  // A wave has room for all of them.
  EXPECT_DOUBLE_EQ(seconds(128), 2 * seconds(64));
}

TEST(PriceList, GroupsHaveTheLoadThatItIsMadeFor) {
  Hardware hardware = Machine();
  hardware.copy_bytes_per_s = 1e30;
  hardware.multiprocessors = 64;
  hardware.launch_s = hardware.tile_terms = 0;
  const KernelCost kernel(Product{.m = 64, .n = 64, .k = 4096, .a_transposed = true, .groups = 16},
                          Cost{});
  const auto seconds = [&](double load) {
    const PriceList prices(hardware, /*deterministic=*/false, DType::kFloat32, load);
    return prices.FloorSeconds(kernel, 0, "grouped_dw");
  };
  EXPECT_DOUBLE_EQ(seconds(4), 4 * seconds(1));
}

TEST(PriceList, OverlapCostsKernelsAndLinks) {
  Hardware hardware = Machine();
  hardware.kernels_beside_collectives = 0.75;
  hardware.collectives_beside_kernels = 0.5;
  int of_kernels = 0, of_links = 0;
  for (const SimOverlap& overlap : PriceList(hardware, false).Overlaps()) {
    const bool kernels = overlap.of == SimResource::kKernels;
    EXPECT_EQ(overlap.rate, kernels ? 0.75 : 0.5);
    ++(kernels ? of_kernels : of_links);
  }
  EXPECT_EQ(of_kernels, 2);
  EXPECT_EQ(of_links, 2);
  hardware.device = Hardware::Device::kCpu;  // There, cores are what is shared.
  EXPECT_TRUE(PriceList(hardware, false).Overlaps().empty());
}

// 64 tiles are one wave of 64 multiprocessors and two of 60; kernels of our own run on all.
TEST(PriceList, ProductsRunOnWhatCollectivesLeave) {
  Hardware hardware = Machine();
  hardware.copy_bytes_per_s = 1e30;
  hardware.multiprocessors = 64;
  hardware.launch_s = 0;
  hardware.kernels_beside_collectives = 0.75;
  const PriceList all(hardware, false);
  const PriceList some(hardware, false, DType::kFloat32, 1, {.all = 64, .collectives = 4});
  const auto ratio = [&](const Product& product) {
    const KernelCost kernel(product, Cost{});
    return some.FloorSeconds(kernel, 0, "linear") / all.FloorSeconds(kernel, 0, "linear");
  };
  EXPECT_GT(ratio({.m = 64 * 128, .n = 256, .k = 4096}), 1.2);
  EXPECT_NEAR(ratio({.m = 1 << 20, .n = 1 << 14, .k = 4096}), 64.0 / 60, 1e-3);  // Many waves.
  EXPECT_EQ(ratio({.m = 64, .n = 64, .k = 4096, .a_transposed = true, .groups = 16}), 1);
  for (const SimOverlap& overlap : some.Overlaps()) {
    EXPECT_EQ(overlap.rate, overlap.of == SimResource::kKernels ? 60.0 / 64 : 1);
  }
}

// A stream with one of four cores takes four times as long, and leaves room for three others.
TEST(PriceList, ThreadsShareTheCores) {
  Hardware hardware = Machine();
  hardware.device = Hardware::Device::kCpu;
  hardware.cores = 4;
  hardware.launch_s = 0;
  Operation operation;
  operation.name = "add";
  operation.costs = {Cost{.bytes_read = 128}};
  const PriceList prices(hardware, false);
  EXPECT_EQ(prices.WorkOf(operation, "compute", 4).seconds, 1);
  EXPECT_EQ(prices.WorkOf(operation, "compute", 4).share, 1);
  EXPECT_EQ(prices.WorkOf(operation, "compute", 1).seconds, 4);
  EXPECT_EQ(prices.WorkOf(operation, "compute", 1).share, 0.25);
}

}  // namespace
}  // namespace fsdp
