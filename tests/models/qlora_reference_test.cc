// Adapters over a base in nf4 against PEFT's over the values that bitsandbytes' codes stand for, as
// reference_test.cc holds the models themselves: tools/reference/README.md, "Bases in nf4".
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/models/gpt2/set_shape.h"
#include "tests/models/llama/set_shape.h"
#include "tests/models/t5/set_shape.h"
#include "tests/testing/json.h"
#include "tests/testing/reference.h"
#include "trainer/nn/lora_options.h"

namespace fsdp::testing {
namespace {

struct Family {
  const char* name;  // The file in tests/fixtures/qlora.
  const char* base;
  void (*set_shape)(const testing::Json&, TinyRun&);
  std::shared_ptr<const RowSource> (*rows)(const testing::Json&, const std::vector<int32_t>&,
                                           const std::vector<float>&);
};
constexpr Family kFamilies[] = {{"gpt2", "gpt2/odd_heads", SetGpt2Shape, nullptr},
                                {"llama", "llama/llama_6_2", SetLlamaShape, nullptr},
                                {"qwen3", "llama/qwen3_documents", SetLlamaShape, nullptr},
                                {"t5", "t5/gated", SetT5Shape, T5Rows}};

LoraOptions OptionsOf(const testing::Json& c) {
  return {.rank = c.at("rank"),
          .alpha = c.at("alpha"),
          .targets = c.at("targets"),
          .base = LoraBase::kNf4,
          .base_scales = c.at("nested").get<bool>() ? BaseScales::k8Bit : BaseScales::kFp32,
          .base_exclude = c.at("exclude")};
}

struct Way {
  const char* name;
  int world;
  Strategy strategy;
  std::optional<int64_t> shard_size = std::nullopt;
};
constexpr Way kWays[] = {{"FullShard1", 1, Strategy::kFullShard},
                         {"NoShard2", 2, Strategy::kNoShard},
                         {"FullShard3", 3, Strategy::kFullShard},
                         {"HybridShard4", 4, Strategy::kHybridShard, 2},
                         {"FullShard5", 5, Strategy::kFullShard}};
constexpr Way kHalfWays[] = {{"FullShard2", 2, Strategy::kFullShard}};

using Case = std::tuple<Family, Way>;

class QloraReferenceTest : public ::testing::TestWithParam<Case> {
 protected:
  TinyResult Run(TinyRun run, DType param = DType::kFloat32) const {
    const auto& [family, way] = GetParam();
    run.world = way.world;
    run.options.executor.sharding_strategy = way.strategy;
    run.options.executor.shard_size = way.shard_size;
    run.options.executor.mixed_precision.param_dtype = param;
    return Train(run);
  }

  // In bf16: at most twice the error of PyTorch, whose adapters are read in bf16 too.
  void ExpectNear(const std::string& name, const std::vector<float>& ours) const {
    const std::vector<double> exact = reference_.Doubles("bf16/" + name);
    ASSERT_EQ(ours.size(), exact.size()) << name;
    double sum = 0;
    for (size_t i = 0; i < ours.size(); ++i) sum += std::pow(double{ours[i]} - exact[i], 2);
    EXPECT_LE(std::sqrt(sum), 2 * reference_.Doubles("bf16/" + name + ".bf16_error")[0]) << name;
  }

  const Family family_ = std::get<Family>(GetParam());
  const Reference reference_{"tests/fixtures/" + std::string(family_.base),
                             [this](const testing::Json& c, TinyRun& run) {
                               family_.set_shape(c, run);
                               run.lora = OptionsOf(c.at("case").at("adapters"));
                             },
                             family_.rows,
                             "tests/fixtures/qlora/" + std::string(family_.name) + ".safetensors"};
};

class QloraHalfReferenceTest : public QloraReferenceTest {};

TEST_P(QloraReferenceTest, LogitsGradientsAndTwentySteps) {
  Judge judge(reference_);
  judge.Batch(Run(reference_.BatchRun()));
  judge.Trainings([this](const TinyRun& run) { return Run(run); });
}

TEST_P(QloraHalfReferenceTest, LogitsGradientsAndTwentySteps) {
  const TinyResult batch = Run(reference_.BatchRun(), DType::kBFloat16);
  ExpectNear("batch/logits", batch.logits);
  for (const auto& [name, gradient] : batch.gradients) ExpectNear("grad/" + name, gradient);
  ExpectNear("adamw/loss", Run(reference_.TrainRun("adamw"), DType::kBFloat16).losses);
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  const auto& [family, way] = info.param;
  return std::string(family.name) + "_" + way.name;
}

INSTANTIATE_TEST_SUITE_P(Worlds, QloraReferenceTest,
                         ::testing::Combine(::testing::ValuesIn(kFamilies),
                                            ::testing::ValuesIn(kWays)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Worlds, QloraHalfReferenceTest,
                         ::testing::Combine(::testing::ValuesIn(kFamilies),
                                            ::testing::ValuesIn(kHalfWays)),
                         CaseName);

}  // namespace
}  // namespace fsdp::testing
