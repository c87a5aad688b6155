// Muon over all ranks of a world, from gradients that a formula gives to every element, against the
// formula in float64 and against itself at other numbers of ranks.
#include "trainer/optim/muon.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/testing/newton_schulz_oracle.h"
#include "tests/trainer/optim/formula_steps.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/json_reader.h"

namespace fsdp {
namespace {

using testing::Number;
using testing::Steps;
using testing::TinyRun;
using testing::Values;

struct Case : testing::Case {
  Case() : testing::Case(OptimizerKind::kMuon) {}
};

ParameterGroup Excepted(const std::string& match) {
  ParameterGroup group;
  group.match = match;
  group.rule = GroupRule::kAdamW;
  return group;
}

// NorMuon's: outputs are rows of Llama's matrices, columns of GPT-2's.
Matrix Normalized(const Case& c, Matrix o, int64_t rows, int64_t width, Matrix& moments) {
  const auto output = [&](size_t i) { return c.llama ? i / width : i % width; };
  const int64_t outputs = c.llama ? rows : width;
  const double beta2 = *c.optimizer.muon.row_beta2;
  moments.resize(outputs);
  for (double& v : moments) v *= beta2;
  double before = 0, after = 0;
  for (size_t i = 0; i < o.size(); ++i) {
    moments[output(i)] += (1 - beta2) * o[i] * o[i] * outputs / static_cast<double>(o.size());
    before += o[i] * o[i];
  }
  for (size_t i = 0; i < o.size(); ++i) {
    o[i] /= std::sqrt(moments[output(i)]);
    after += o[i] * o[i];
  }
  for (double& x : o) x *= std::sqrt(before / after);
  return o;
}

// The masters of a parameter's columns [from, from + width) after the case's steps.
Matrix Oracle(const Case& c, const std::string& name, int64_t rows, int64_t pitch, int64_t from,
              int64_t width, int64_t first_row, double adjusted) {
  Matrix w, m(rows * width), moments;
  const auto number = [&](int64_t i, int64_t step) {
    return static_cast<double>(
        Number(name, (first_row + i / width) * pitch + from + i % width, step));
  };
  for (int64_t i = 0; i < rows * width; ++i) w.push_back(number(i, 0));
  for (size_t s = 0; s < c.coefficients.size(); ++s) {
    Matrix u(m.size());
    for (size_t i = 0; i < m.size(); ++i) {
      const double g = c.coefficients[s] * c.size * number(i, s + 1);
      const double mu = c.optimizer.muon.momentum;
      m[i] += (1 - mu) * (g - m[i]);
      u[i] = c.optimizer.muon.nesterov ? m[i] + (1 - mu) * (g - m[i]) : m[i];
    }
    Matrix o = NewtonSchulzOracle(u, rows, width);
    if (c.optimizer.muon.row_beta2) o = Normalized(c, o, rows, width, moments);
    for (size_t i = 0; i < w.size(); ++i) {
      w[i] -= c.lr * (c.optimizer.weight_decay * w[i] + adjusted * o[i]);
    }
  }
  return w;
}

void ExpectColumns(const std::vector<float>& got, const Matrix& want, int64_t pitch, int64_t from,
                   int64_t width, int64_t first_row, const std::string& what) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const int64_t at = (first_row + static_cast<int64_t>(i) / width) * pitch + from +
                       static_cast<int64_t>(i) % width;
    worst = std::max(worst, std::abs(got[at] - want[i]));
  }
  EXPECT_LT(worst, 2e-5) << what;
}

// c_attn is [inputs, 3 outputs], c_fc [inputs, outputs]: rows are inputs.
TEST(Muon, FollowsTheFormulaForEachMatrixOfGpt2) {
  for (const AdjustLr how : {AdjustLr::kOriginal, AdjustLr::kMatchRmsAdamW}) {
    Case c;
    if (how == AdjustLr::kMatchRmsAdamW) c.optimizer.muon.row_beta2 = 0.8;
    c.optimizer.muon.adjust_lr = how;
    c.optimizer.muon.nesterov = how == AdjustLr::kOriginal;
    const Values got = Steps(c);
    const bool original = how == AdjustLr::kOriginal;
    const std::string h = "transformer.h.1.";
    for (int part = 0; part < 3; ++part) {
      const std::string name = h + "attn.c_attn.weight";
      ExpectColumns(got.at("master/" + name),
                    Oracle(c, name, 24, 72, 24 * part, 24, 0, original ? 1 : 0.2 * std::sqrt(24)),
                    72, 24 * part, 24, 0, name);
    }
    const std::string fc = h + "mlp.c_fc.weight", proj = h + "mlp.c_proj.weight";
    const double large = 0.2 * std::sqrt(52.0);
    ExpectColumns(got.at("master/" + fc),
                  Oracle(c, fc, 24, 52, 0, 52, 0, original ? std::sqrt(52.0 / 24) : large), 52, 0,
                  52, 0, fc);
    ExpectColumns(got.at("master/" + proj), Oracle(c, proj, 52, 24, 0, 24, 0, original ? 1 : large),
                  24, 0, 24, 0, proj);
  }
}

// Rows are outputs, and q, k and v are rows of one parameter.
TEST(Muon, FollowsTheFormulaForSlicesOfLlama) {
  Case c;
  c.llama = true;
  c.optimizer.muon.adjust_lr = AdjustLr::kOriginal;
  for (const std::optional<double> row_beta2 : {std::optional<double>(), std::optional(0.9)}) {
    c.optimizer.muon.row_beta2 = row_beta2;
    const Values got = Steps(c);
    const auto is_qkv = [](const auto& entry) {
      return entry.first.starts_with("master/model.layers.1.") && entry.second.size() == 120 * 24;
    };
    const auto qkv = std::ranges::find_if(got, is_qkv);
    ASSERT_NE(qkv, got.end());
    const std::string name = qkv->first.substr(7);
    for (const auto& [first, rows] : {std::pair(0, 60), {60, 30}, {90, 30}}) {
      ExpectColumns(qkv->second,
                    Oracle(c, name, rows, 24, 0, 24, first, std::sqrt(std::max(1.0, rows / 24.0))),
                    24, 0, 24, first, name);
    }
  }
}

TEST(Muon, AllElseIsUpdatedAsByAdamW) {
  Case muon, adamw;
  adamw.optimizer.kind = OptimizerKind::kAdamW;
  muon.optimizer.groups = {Excepted("*.h.0.mlp.*.weight")};
  const Values a = Steps(muon), b = Steps(adamw);
  int same = 0;
  for (const auto& [name, values] : b) {
    const bool linear = name.find(".h.") != std::string::npos && values.size() >= 24 * 24;
    const bool excepted = name.find(".h.0.mlp.") != std::string::npos;
    if (linear && !excepted) {
      EXPECT_EQ(a.contains(name), !name.starts_with("v/")) << name;
      continue;
    }
    EXPECT_EQ(a.at(name), values) << name;
    ++same;
  }
  EXPECT_GT(same, 30);
}

TEST(Muon, MastersAndMomentumHaveTheSameBitsAtEveryShardingFactor) {
  for (const bool llama : {false, true}) {
    for (const bool narrow : {false, true}) {
      Case c;
      c.llama = llama;
      c.optimizer.seed = 5;
      if (narrow) {
        c.executor.state_dtype = DType::kBFloat16;
        c.optimizer.muon.ns_dtype = DType::kBFloat16;
        c.optimizer.ema = 0.9;
        c.optimizer.muon.row_beta2 = 0.9;
      }
      const Values one = Steps(c);
      for (int world = 2; world <= 8; ++world) {
        c.world = world;
        EXPECT_EQ(Steps(c), one) << world;
      }
      c.executor.auto_wrap.policy = AutoWrap::kNone;
      EXPECT_EQ(Steps(c), one) << "one unit";
      c.executor.auto_wrap.policy = AutoWrap::kTransformerBlock;
      c.world = 3;
      c.executor.sharding_strategy = Strategy::kNoShard;
      EXPECT_EQ(Steps(c), one) << "no_shard";
      c.world = 4;
      c.executor.sharding_strategy = Strategy::kHybridShard;
      c.executor.shard_size = 2;
      EXPECT_EQ(Steps(c), one) << "hybrid";
      c.executor.cpu_offload.optimizer = true;
      EXPECT_EQ(Steps(c), one) << "hybrid, on the host";
      c.executor.sharding_strategy = Strategy::kFullShard;
      c.executor.shard_size.reset();
      for (const int world : {1, 3, 8}) {
        c.world = world;
        EXPECT_EQ(Steps(c), one) << world << " on the host";
      }
    }
  }
}

// Matrices have codes of the momentum alone, the token table of both moments.
TEST(Muon, CodesHaveTheSameBitsAtEveryShardingFactor) {
  Case c;
  c.wide = true;
  c.executor.state_dtype = DType::kUInt8;
  const Values one = Steps(c);
  const std::string fc = "transformer.h.1.mlp.c_fc.weight";
  EXPECT_TRUE(one.contains("m_absmax/" + fc));
  EXPECT_FALSE(one.contains("v_absmax/" + fc));
  for (const int world : {2, 3, 5, 8}) {
    c.world = world;
    EXPECT_EQ(Steps(c), one) << world;
  }
  c.executor.auto_wrap.policy = AutoWrap::kNone;
  EXPECT_EQ(Steps(c), one) << "one unit";
  c.world = 3;
  c.executor.sharding_strategy = Strategy::kNoShard;
  EXPECT_EQ(Steps(c), one) << "no_shard";
  // The first step applies what it had before rounding.
  Case fp32 = c;
  c.coefficients = fp32.coefficients = {1};
  fp32.executor.state_dtype = DType::kFloat32;
  EXPECT_EQ(Steps(c).at("master/" + fc), Steps(fp32).at("master/" + fc));
}

TEST(Muon, AZeroGradientAndASkippedStepMoveNothing) {
  for (const bool skipped : {false, true}) {
    Case c, none;
    c.optimizer.muon.row_beta2 = none.optimizer.muon.row_beta2 = 0.9;
    c.optimizer.weight_decay = none.optimizer.weight_decay = 0;
    if (skipped) {
      c.coefficients = {1, std::nanf(""), 2}, none.coefficients = {1, 2};
    } else {
      c.size = 0, none.coefficients = {};
    }
    // The gradients of a step follow its number: only those of the last step may differ.
    if (skipped) c.coefficients = {1, std::nanf("")}, none.coefficients = {1};
    for (const int world : {1, 2}) {
      c.world = none.world = world;
      EXPECT_EQ(Steps(c), Steps(none)) << skipped << " " << world;
    }
  }
}

// 20 steps beside torch.optim.Muon: as far from float64 as it is, or less.
TEST(Muon, FollowsTorch) {
  const auto file = TryParseJson(ReadWholeFile("tests/fixtures/muon/steps.json"));
  ASSERT_TRUE(file);
  for (const auto& [dtype, key, times, row_beta2] :
       std::vector<std::tuple<DType, const char*, int, std::optional<double>>>{
           {DType::kFloat32, "float32", 4, {}},
           {DType::kFloat32, "float32", 4, 0.9},
           {DType::kBFloat16, "bfloat16", 2, {}},
           {DType::kBFloat16, "bfloat16", 2, 0.9}}) {
    Case c;
    c.optimizer.muon.row_beta2 = row_beta2;
    c.world = 2;
    c.lr = file->At("lr").Number();
    c.coefficients.assign(file->At("steps").Integer(), 1);
    c.optimizer.weight_decay = file->At("weight_decay").Number();
    c.optimizer.muon.momentum = file->At("momentum").Number();
    c.optimizer.muon.adjust_lr = AdjustLr::kOriginal;
    c.optimizer.muon.ns_dtype = dtype;
    const Values got = Steps(c);
    for (const JsonValue& matrix : file->At("matrices").Elements()) {
      const std::optional<JsonValue> of_rows = matrix.Find("row_beta2");
      if (of_rows.has_value() != row_beta2.has_value()) continue;
      const std::string name = matrix.At("name").Text();
      const int64_t pitch = matrix.At("pitch").Integer(), width = matrix.At("width").Integer();
      const std::vector<JsonValue> want = matrix.At("want").Elements();
      double squares = 0;
      for (int64_t i = 0; i < std::ssize(want); ++i) {
        const int64_t at = i / width * pitch + matrix.At("column").Integer() + i % width;
        const double error = got.at("master/" + name)[at] - want[i].Number();
        squares += error * error;
      }
      const double mean = std::sqrt(squares / static_cast<double>(want.size()));
      EXPECT_LT(mean, times * matrix.At(key).Number()) << name << " " << key;
      std::printf("%s, %s: %.2f times torch's error\n", name.c_str(), key,
                  mean / matrix.At(key).Number());
    }
  }
}

TEST(Muon, MistakesNameGroups) {
  const Llama model(TinyRun::TinyLlama());
  OptimizerOptions options;
  options.kind = OptimizerKind::kMuon;
  EXPECT_TRUE(MuonMistakes(options, model).empty());
  options.groups = {Excepted("*")};
  ASSERT_EQ(MuonMistakes(options, model).size(), 1u);
  EXPECT_EQ(MuonMistakes(options, model)[0].group, -1);
  options.groups = {Excepted("*.0.*q_proj*")};
  ASSERT_EQ(MuonMistakes(options, model).size(), 1u);
  EXPECT_EQ(MuonMistakes(options, model)[0].group, 0);
  EXPECT_NE(MuonMistakes(options, model)[0].message.find("k_proj"), std::string::npos);
}

}  // namespace
}  // namespace fsdp
