// Operations that a machine's file names: op_bytes_per_s, op_flops_per_s.
#include <gtest/gtest.h>

#include "trainer/recipe/hardware.h"
#include "trainer/runtime/operation.h"
#include "trainer/simulate/price_list.h"

namespace fsdp {
namespace {

Hardware Cpu() {
  Hardware machine;
  machine.name = "cpu";
  machine.device = Hardware::Device::kCpu;
  machine.fp32_flops = 100;
  machine.copy_bytes_per_s = 10;
  machine.cores = 4;
  return machine;
}

KernelCost Moves(double bytes) { return Cost{.bytes_read = bytes}; }

KernelCost Multiplies() {  // 1,000 FLOPs.
  return KernelCost(Product{.m = 5, .n = 10, .k = 10}, Cost{});
}

SimWork Price(const Hardware& machine, const char* op, std::vector<KernelCost> costs,
              DType dtype = DType::kFloat32, int threads = 4, int ranks = 1) {
  return PriceList(machine, /*deterministic=*/false, dtype)
      .WorkOf({.name = op, .reads = {}, .writes = {}, .costs = std::move(costs)}, "compute",
              threads, ranks);
}

TEST(OwnRates, CountInPlaceOfACopysFasterOrSlower) {
  Hardware machine = Cpu();
  machine.op_bytes_per_s = {{"slow", 5}, {"fast", 40}};
  EXPECT_DOUBLE_EQ(Price(machine, "any", {Moves(80)}).seconds, 8);
  EXPECT_DOUBLE_EQ(Price(machine, "slow", {Moves(80)}).seconds, 16);
  EXPECT_DOUBLE_EQ(Price(machine, "fast", {Moves(80)}).seconds, 2);
  const PriceList prices(machine, /*deterministic=*/false);
  EXPECT_DOUBLE_EQ(prices.FloorSeconds(Moves(80), 80, "slow"), 8);  // By the faster one.
  EXPECT_DOUBLE_EQ(prices.FloorSeconds(Moves(80), 80, "fast"), 2);
}

TEST(OwnRates, AreOfARunsDTypeFirst) {
  Hardware machine = Cpu();
  machine.op_bytes_per_s = {{"gelu", 40}, {"gelu, bf16", 20}};
  EXPECT_DOUBLE_EQ(Price(machine, "gelu", {Moves(80)}).seconds, 2);
  EXPECT_DOUBLE_EQ(Price(machine, "gelu", {Moves(80)}, DType::kBFloat16).seconds, 4);
  EXPECT_DOUBLE_EQ(Price(machine, "gelu", {Moves(80)}, DType::kFloat16).seconds, 2);
}

TEST(OwnRates, OfProductsAreOfAllThatTheirOperationDoes) {
  Hardware machine = Cpu();
  EXPECT_DOUBLE_EQ(Price(machine, "linear", {Multiplies(), Moves(80)}).seconds, 18);
  machine.op_flops_per_s = {{"linear", 50}};
  EXPECT_DOUBLE_EQ(Price(machine, "linear", {Multiplies(), Moves(80)}).seconds, 20);
  EXPECT_DOUBLE_EQ(Price(machine, "other", {Multiplies()}).seconds, 10);
  // The ends of a sum of k terms count as three quarters of k more.
  machine.op_terms = {{"linear", 0.75 * static_cast<double>(Multiplies().product.k)}};
  EXPECT_DOUBLE_EQ(Price(machine, "linear", {Multiplies(), Moves(80)}).seconds, 35);
  // A [5, 10] result with 2 rows and columns more: 2 / 5 + 2 / 10.
  machine.op_sides = {{"linear", 2}};
  EXPECT_DOUBLE_EQ(Price(machine, "linear", {Multiplies(), Moves(80)}).seconds, 47);
  EXPECT_DOUBLE_EQ(Price(machine, "other", {Multiplies()}).seconds, 10);
}

// Each group has its own ends and sides, whoever has the rows.
TEST(OwnRates, OfProductsHaveTheSidesOfEachGroup) {
  Hardware machine = Cpu();
  machine.op_flops_per_s = {{"linear", 50}};
  machine.op_terms = {{"linear", 3}};
  machine.op_sides = {{"linear", 2}};
  const double one = Price(machine, "linear", {Multiplies()}).seconds;
  const Product rows{.m = 20, .n = 10, .k = 10, .groups = 4};
  const Product terms{.m = 5, .n = 10, .k = 40, .a_transposed = true, .groups = 4};
  EXPECT_DOUBLE_EQ(Price(machine, "linear", {{rows, Cost{}}}).seconds, 4 * one);
  EXPECT_DOUBLE_EQ(Price(machine, "linear", {{terms, Cost{}}}).seconds, 4 * one);
}

// The floor takes the better of an operation's own rate and the shared ones, for all of its
// kernels together.
TEST(OwnRates, OfProductsAreInTheFloorWhereTheyAreBetter) {
  Hardware machine = Cpu();
  const std::vector<KernelCost> kernels = {Multiplies(), Moves(80)};
  const auto floor = [&] {
    const PriceList prices(machine, /*deterministic=*/false);
    return prices.FloorSeconds(kernels, {0, 80}, "linear");
  };
  EXPECT_EQ(floor(), (std::vector<double>{10, 8}));
  machine.op_flops_per_s = {{"linear", 50}};  // 20 s for all of it.
  EXPECT_EQ(floor(), (std::vector<double>{10, 8}));
  machine.op_flops_per_s = {{"linear", 80}};
  EXPECT_EQ(floor(), (std::vector<double>{12.5, 0}));
  machine.op_flops_per_s = {{"linear", 50}};
  machine.fp32_flops.reset();
  EXPECT_EQ(floor(), (std::vector<double>{20, 0}));
  machine.fp32_flops = 100;
  machine.copy_bytes_per_s.reset();
  EXPECT_EQ(floor(), (std::vector<double>{20, 0}));
}

// Ranks of a host have their part of its cores: all of it where their threads take it.
TEST(OwnRates, AStreamSharesTheCoresOfItsRank) {
  const SimWork alone = Price(Cpu(), "any", {Moves(80)}, DType::kFloat32, 2, 1);
  EXPECT_DOUBLE_EQ(alone.seconds, 16);
  EXPECT_DOUBLE_EQ(alone.share, 0.5);
  const SimWork beside = Price(Cpu(), "any", {Moves(80)}, DType::kFloat32, 2, 2);
  EXPECT_DOUBLE_EQ(beside.seconds, 16);
  EXPECT_DOUBLE_EQ(beside.share, 1);
}

}  // namespace
}  // namespace fsdp
