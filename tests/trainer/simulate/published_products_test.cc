// This program's prices of products are held to what others have measured and published
// (tools/paper/*_products.json, each with its source), at the numbers of the committed hardware
// files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "tests/testing/json.h"
#include "trainer/core/atomic_file.h"
#include "trainer/recipe/hardware.h"
#include "trainer/runtime/cost.h"
#include "trainer/simulate/price_list.h"

namespace fsdp {
namespace {

// A row is [count, m, n, k, TFLOP/s]: so many products in one kernel, which has as many tiles as
// one of `count` times the rows.
double PredictedFlops(const testing::Json& row, const Hardware& gpu) {
  Product product;
  product.m = row[0].get<int64_t>() * row[1].get<int64_t>();
  product.n = row[2], product.k = row[3];
  product.dtype = DType::kBFloat16;
  const double rate = ProductRateInWaves(product, *gpu.bf16_flops * gpu.product_share,
                                         gpu.multiprocessors.value(), gpu.tile_terms);
  const auto count = row[0].get<double>(), m = row[1].get<double>(), n = row[2].get<double>(),
             k = row[3].get<double>();
  const double bytes = 2 * count * (m * k + k * n + m * n);
  const double seconds = std::max(product.flops() / rate, bytes / *gpu.copy_bytes_per_s);
  return product.flops() / (seconds + gpu.launch_s);
}

struct Published {
  const char* file;
  const char* gpu;
  size_t rows;
  // As tools/paper/parts.py prints it of its copy of the price: the two are one.
  double median;
};

class PublishedProducts : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedProducts, HalfAreWithin8Percent) {
  const Published& published = GetParam();
  const auto text = ReadWholeFile(std::string("tools/paper/") + published.file);
  const auto rows = testing::Json::parse(text)["gpus"][published.gpu]["rows"];
  ASSERT_EQ(rows.size(), published.rows);
  const Hardware gpu = ReadHardware(std::string("configs/hardware/") + published.gpu + ".yaml");
  std::vector<double> errors, flat;
  for (const testing::Json& row : rows) {
    const double measured = row[4].get<double>() * 1e12;
    errors.push_back(std::abs(PredictedFlops(row, gpu) / measured - 1));
    flat.push_back(std::abs(*gpu.bf16_flops * gpu.product_share / measured - 1));
  }
  const auto median = [](std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  };
  const double error = median(errors);
  std::cout << published.gpu << ": median " << 100 * error << " %, one rate for every shape "
            << 100 * median(flat) << " %\n";
  EXPECT_LT(error, 0.08);
  EXPECT_NEAR(error, published.median, 0.0005);
  EXPECT_GT(median(flat), 2 * error);
}

INSTANTIATE_TEST_SUITE_P(Gpus, PublishedProducts,
                         ::testing::Values(Published{"openxla_products.json", "h100-80gb", 375,
                                                     0.030},
                                           Published{"openxla_products.json", "b200", 375, 0.022},
                                           Published{"azure_products.json", "a100-80gb", 8, 0.062}),
                         [](const auto& info) {
                           std::string name = info.param.gpu;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace fsdp
