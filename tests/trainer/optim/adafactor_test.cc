// Adafactor over all ranks of a world, against torch.optim.Adafactor, the formula in float64, and
// itself at other numbers of ranks.
#include "trainer/optim/adafactor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "tests/trainer/optim/formula_steps.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/json_reader.h"

namespace fsdp {
namespace {

using testing::Number;
using testing::Steps;
using testing::Values;

struct Case : testing::Case {
  Case() : testing::Case(OptimizerKind::kAdafactor) { uneven = true; }
};

// 20 steps beside torch.optim.Adafactor: at most 4 times as far from float64 as its fp32, and with
// masters in bf16 2 times as far as its bf16.
TEST(Adafactor, FollowsTorch) {
  const auto file = TryParseJson(ReadWholeFile("tests/fixtures/adafactor/steps.json"));
  ASSERT_TRUE(file);
  for (const auto& [dtype, key, times] :
       {std::tuple(DType::kFloat32, "float32", 4), {DType::kBFloat16, "bfloat16", 2}}) {
    for (const int world : {1, 2, 3, 5}) {
      Case c;
      c.world = world;
      c.lr = file->At("lr").Number();
      c.coefficients.assign(file->At("steps").Integer(), 1);
      c.optimizer.weight_decay = file->At("weight_decay").Number();
      c.optimizer.adafactor.beta2_decay = file->At("beta2_decay").Number();
      for (int i = 0; i < 2; ++i) {
        c.optimizer.adafactor.eps[i] = file->At("eps").Elements()[i].Number();
      }
      c.optimizer.adafactor.d = file->At("d").Number();
      c.executor.mixed_precision.master_dtype = dtype;
      const Values got = Steps(c);
      double worst = 0;
      for (const JsonValue& tensor : file->At("tensors").Elements()) {
        const std::string name = tensor.At("name").Text();
        const std::vector<JsonValue> want = tensor.At("want").Elements();
        const std::vector<float>& masters = got.at("master/" + name);
        ASSERT_EQ(masters.size(), want.size()) << name;
        double squares = 0;
        for (size_t i = 0; i < want.size(); ++i) {
          const double error = masters[i] - want[i].Number();
          squares += error * error;
        }
        const double mean = std::sqrt(squares / static_cast<double>(want.size()));
        EXPECT_LT(mean, times * tensor.At(key).Number()) << name << " " << key << " " << world;
        worst = std::max(worst, mean / tensor.At(key).Number());
      }
      std::printf("%s, %d ranks: %.2f times torch's error\n", key, world, worst);
    }
  }
}

// The masters of a matrix, the elements of a parameter from `first` on, after the case's steps.
std::vector<double> Oracle(const Case& c, const std::string& name, int64_t first, int64_t rows,
                           int64_t width) {
  const double eps1 = c.optimizer.adafactor.eps[0], eps2 = c.optimizer.adafactor.eps[1];
  const auto n = static_cast<double>(rows * width);
  const auto rms = [&](const std::vector<double>& x) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    return std::sqrt(squares / n);
  };
  std::vector<double> w, row(rows), column(width), u(rows * width);
  for (int64_t i = 0; i < rows * width; ++i) w.push_back(Number(name, first + i, 0));
  for (size_t s = 0; s < c.coefficients.size(); ++s) {
    const double t = static_cast<double>(s) + 1;
    const double fresh = std::pow(t, c.optimizer.adafactor.beta2_decay);
    std::vector<double> g, rows_new(rows), columns_new(width);
    for (int64_t i = 0; i < rows * width; ++i) {
      g.push_back(c.coefficients[s] * c.Gradient(name, first + i, static_cast<int64_t>(t)));
      rows_new[i / width] += g[i] * g[i] / static_cast<double>(width);
      columns_new[i % width] += g[i] * g[i] / static_cast<double>(rows);
    }
    double mean = 0;
    for (int64_t r = 0; r < rows; ++r) {
      row[r] += fresh * (rows_new[r] - row[r]);
      mean += row[r] / static_cast<double>(rows);
    }
    for (int64_t i = 0; i < width; ++i) column[i] += fresh * (columns_new[i] - column[i]);
    for (int64_t i = 0; i < rows * width; ++i) {
      const double e = row[i / width] * column[i % width] / std::max(mean, eps1);
      u[i] = g[i] / std::sqrt(std::max(e, eps1 * eps1));
    }
    const double alpha = std::max(eps2, rms(w)) * std::min(c.lr, 1 / std::sqrt(t));
    const double scale = alpha / std::max(1.0, rms(u) / c.optimizer.adafactor.d);
    for (int64_t i = 0; i < rows * width; ++i) {
      w[i] -= c.lr * c.optimizer.weight_decay * w[i] + scale * u[i];
    }
  }
  return w;
}

// q, k and v are tensors of the files, and rows of one parameter.
TEST(Adafactor, TensorsAreThoseOfTheFiles) {
  for (const int world : {1, 4}) {
    Case c;
    c.llama = true;
    c.world = world;
    c.lr = 0.5;
    const Values got = Steps(c);
    const auto qkv = std::ranges::find_if(got, [](const auto& entry) {
      return entry.first.starts_with("master/model.layers.1.") && entry.second.size() == 120 * 24;
    });
    ASSERT_NE(qkv, got.end());
    const std::string name = qkv->first.substr(7);
    int64_t begin = 0;
    for (const auto& [tensor, values] : got) {
      if (!tensor.starts_with("factor/model.layers.1.self_attn.k_proj.weight")) continue;
      EXPECT_EQ(std::ssize(values), tensor.ends_with(".rows") ? 30 : 24) << tensor;
      ++begin;
    }
    EXPECT_EQ(begin, 2);
    for (const auto& [first, rows] : {std::pair(int64_t{0}, int64_t{60}), {60, 30}, {90, 30}}) {
      const std::vector<double> want = Oracle(c, name, first * 24, rows, 24);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(qkv->second[first * 24 + static_cast<int64_t>(i)], want[i], 2e-6)
            << first << " " << i << " " << world;
      }
    }
  }
}

TEST(Adafactor, EveryWorldAndStrategyAgreesToRounding) {
  for (const bool llama : {false, true}) {
    Case c;
    c.llama = llama;
    c.optimizer.ema = 0.9;
    const Values one = Steps(c);
    const auto expect_near = [&](const std::string& what) {
      const Values other = Steps(c);
      ASSERT_EQ(other.size(), one.size());
      for (const auto& [name, want] : one) {
        const std::vector<float>& got = other.at(name);
        ASSERT_EQ(got.size(), want.size()) << name;
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(got[i], want[i], 1e-5 * std::max(1.0f, std::abs(want[i]))) << name << what;
        }
      }
    };
    for (const int world : {2, 3, 4}) {
      c.world = world;
      expect_near(std::to_string(world));
    }
    c.executor.auto_wrap.policy = AutoWrap::kNone;
    expect_near("one unit");
    c.executor.auto_wrap.policy = AutoWrap::kTransformerBlock;
    c.world = 3;
    c.executor.sharding_strategy = Strategy::kNoShard;
    expect_near("no_shard");
    c.world = 4;
    c.executor.sharding_strategy = Strategy::kHybridShard;
    c.executor.shard_size = 2;
    expect_near("hybrid");
    const Values hybrid = Steps(c);
    c.executor.cpu_offload.optimizer = true;
    EXPECT_EQ(Steps(c), hybrid) << "on the host";
    c.executor.sharding_strategy = Strategy::kFullShard;
    c.executor.shard_size.reset();
    c.world = 1;
    EXPECT_EQ(Steps(c), one) << "on the host";
  }
}

// A shard that is updated in two parts, beside two that have one each.
TEST(Adafactor, PartsOfAShardAreOneUpdate) {
  Case c;
  c.vocabulary = Adafactor::kPart / 24 + 1000;
  c.coefficients = {1};
  const Values one = Steps(c);
  c.world = 2;
  const Values two = Steps(c);
  for (const auto& [name, want] : one) {
    const std::vector<float>& got = two.at(name);
    ASSERT_EQ(got.size(), want.size()) << name;
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << name << i;
  }
}

TEST(Adafactor, AZeroGradientAndASkippedStepMoveNothing) {
  for (const bool skipped : {false, true}) {
    Case c, none;
    c.optimizer.weight_decay = none.optimizer.weight_decay = 0;
    if (skipped) {
      c.coefficients = {1, std::nanf("")}, none.coefficients = {1};
    } else {
      c.size = 0, none.coefficients = {};
    }
    for (const int world : {1, 2}) {
      c.world = none.world = world;
      EXPECT_EQ(Steps(c), Steps(none)) << skipped << " " << world;
    }
  }
}

// A step that is skipped counts for no later one.
TEST(Adafactor, ASkippedStepIsNoStep) {
  Case c;
  c.size = 1;
  c.coefficients = {std::nanf("")};
  const Values skipped = Steps(c);
  for (const auto& [name, values] : skipped) {
    if (!name.starts_with("factor/") && !name.starts_with("v/")) continue;
    EXPECT_TRUE(std::ranges::all_of(values, [](float x) { return x == 0; })) << name;
  }
}

}  // namespace
}  // namespace fsdp
