// Which share of the updates stays on the device, of rates and of units.
#include "trainer/engine/update_share.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>

#include "models/gpt2/config.h"
#include "models/make_model.h"
#include "tests/emulated/cudart.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/runtime/device_factory.h"
#include "trainer/runtime/gpus.h"

namespace fsdp {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
const auto kAll = [](double) { return true; };
const auto kNothing = [](double) { return false; };

// Units of 1000 elements each.
std::vector<int64_t> Equal(int units) {
  std::vector<int64_t> on_device(units + 1);
  for (int k = 0; k <= units; ++k) on_device[k] = 1000 * k;
  return on_device;
}

TEST(ChooseShare, BothSidesEndTogether) {
  EXPECT_EQ(ChooseShare({1, 1}, Equal(10), kAll), 0.5);
  EXPECT_EQ(ChooseShare({3, 1}, Equal(8), kAll), 0.75);
  EXPECT_EQ(ChooseShare({1e10, 3e10}, Equal(8), kAll), 0.25);
  // s = 9/10, of 4 units: with 3 the host takes 1 / 1, with 4 the device 4 / 9.
  EXPECT_EQ(ChooseShare({9, 1}, Equal(4), kAll), 1);
  // s = 3/5 of 4: 2 / 2 s against 3 / 3 s are one, and fewer take less memory.
  EXPECT_EQ(ChooseShare({3, 2}, Equal(4), kAll), 0.5);
}

TEST(ChooseShare, HasEnds) {
  EXPECT_EQ(ChooseShare({kInfinite, 1}, Equal(7), kAll), 1);
  EXPECT_EQ(ChooseShare({kInfinite, 1}, Equal(7), kNothing), 0);
  EXPECT_EQ(ChooseShare({1, 1e6}, Equal(7), kAll), 0);
  EXPECT_EQ(ChooseShare({1, 1}, {0}, kAll), 0);  // Nothing trains.
}

TEST(ChooseShare, TakesNoMoreThanFitsAndAsksAboutFew) {
  for (const int units : {1, 2, 3, 13, 64, 100}) {
    for (int most = 0; most <= units; ++most) {
      for (const double device : {0.3, 1.0, 4.0, kInfinite}) {
        int asked = 0;
        const auto fits = [&](double share) {
          ++asked;
          EXPECT_GT(share, 0);
          return std::floor(units * share) <= most;
        };
        const double free = ChooseShare({device, 1}, Equal(units), kAll);
        const double share = ChooseShare({device, 1}, Equal(units), fits);
        EXPECT_EQ(std::floor(units * share), std::min<double>(most, std::floor(units * free)))
            << most << " of " << units << " at " << device;
        EXPECT_LE(asked, 2 + std::log2(units));
      }
    }
  }
}

// A large root stays with all alone, so that less of the others is as good as none of them more.
TEST(ChooseShare, GoesByElements) {
  EXPECT_EQ(ChooseShare({1, 1}, {0, 10, 20, 30, 100}, kAll), 0.75);
  EXPECT_EQ(ChooseShare({9, 1}, {0, 10, 20, 30, 100}, kAll), 1);
}

// So the smallest share of several ranks fits on all of them.
TEST(ChooseShare, NoSmallerOneHasMoreElements) {
  const std::vector<int64_t> on_device = {0, 50, 20, 60, 100};
  for (const double device : {0.1, 0.5, 1.0, 2.0, 10.0, kInfinite}) {
    for (int most = 0; most <= 100; most += 10) {
      const auto fits = [&](double share) {
        return on_device[static_cast<size_t>(4 * share)] <= most;
      };
      const double share = ChooseShare({device, 1}, on_device, fits);
      EXPECT_NE(share, 0.5);
      EXPECT_LE(on_device[static_cast<size_t>(4 * share)], most);
    }
  }
}

TEST(ChooseShare, RefusesWhatIsNoRate) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const UpdateRates& rates :
       {UpdateRates{nan, 1}, UpdateRates{1, nan}, UpdateRates{0, 1}, UpdateRates{1, 0},
        UpdateRates{-1, 1}, UpdateRates{1, kInfinite}, UpdateRates{kInfinite, kInfinite}}) {
    EXPECT_THROW(ChooseShare(rates, Equal(3), kAll), std::invalid_argument)
        << rates.device << " " << rates.host;
  }
}

TEST(ShareOf, LeavesAsManyUnitsAsItSays) {
  EXPECT_EQ(ShareOf(1, 3), 0.3334);
  for (int units = 1; units < 700; ++units) {
    for (int stay = 0; stay <= units; ++stay) {
      const double share = ShareOf(stay, units);
      ASSERT_EQ(std::floor(units * share), stay) << stay << " of " << units;
      ASSERT_NEAR(share, static_cast<double>(stay) / units, 1e-4);
    }
  }
}

Gpt2Config Small() {
  return {.hidden_size = 64,
          .intermediate_size = 256,
          .num_hidden_layers = 5,
          .num_attention_heads = 4,
          .vocab_size = 128,
          .max_position_embeddings = 32};
}

TEST(ElementsOnDevice, AreThoseOfTheSchedule) {
  const std::unique_ptr<Model> model = MakeModel(Small());
  ExecutorOptions options;
  const std::vector<int64_t> on_device = ElementsOnDevice(options, *model, /*world=*/2);
  const Layout layout = LayoutFor(options, *model, /*shards=*/2);
  ASSERT_EQ(on_device.size(), layout.units.size() + 1);
  options.cpu_offload.optimizer = true;
  for (int stay = 0; stay < std::ssize(on_device); ++stay) {
    options.cpu_offload.optimizer_share = ShareOf(stay, static_cast<int>(layout.units.size()));
    const std::set<int> on_host = UnitsOnHost(options, layout);
    EXPECT_EQ(std::ssize(on_host), std::ssize(layout.units) - stay);
    int64_t elements = 0;
    for (int u = 0; u < std::ssize(layout.units); ++u) {
      if (on_host.count(u) > 0) continue;
      for (const int f : layout.units[u].flat_parameters) {
        elements += layout.flat_parameters[f].shard_size;
      }
    }
    EXPECT_EQ(on_device[stay], elements);
  }
}

// Whatever the optimizer and its dtypes.
void ExpectRates(DeviceType type) {
  for (const auto kind : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    for (const bool half : {false, true}) {
      SessionOptions options;
      options.optimizer.kind = kind;
      if (kind == OptimizerKind::kSgd && half) options.optimizer.momentum = 0.9;
      auto& mixed = options.executor.mixed_precision;
      if (half) {
        mixed.param_dtype = mixed.master_dtype = DType::kBFloat16;
        options.executor.state_dtype = DType::kBFloat16;
      } else {
        mixed.param_dtype = DType::kFloat16;
        options.optimizer.ema = 0.9;
      }
      for (const int64_t elements : {int64_t{0}, int64_t{1000}, int64_t{140000}}) {
        const std::unique_ptr<Device> device = CreateDevice(type);
        const UpdateRates rates = MeasureUpdates(*device, options, elements);
        EXPECT_GT(rates.device, 0);
        EXPECT_GT(rates.host, 0);
        EXPECT_TRUE(std::isfinite(rates.device) && std::isfinite(rates.host));
      }
      EXPECT_GE(MeasuredBytes(options), kind == OptimizerKind::kAdamW ? 10 : 6);
    }
  }
}

TEST(MeasureUpdates, OnTheCpu) { ExpectRates(DeviceType::kCpu); }

TEST(MeasureUpdates, OnAGpuLeavesNothingThere) {
  ResetEmulatedGpus({.bytes = int64_t{8} << 20});
  const int64_t free = MemoryOf(/*gpu=*/0).free;
  ExpectRates(DeviceType::kCuda);
  EXPECT_EQ(MemoryOf(/*gpu=*/0).free, free);
}

}  // namespace
}  // namespace fsdp
