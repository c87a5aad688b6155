#include "trainer/loop/evaluator.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/testing/scored_images.h"
#include "trainer/comm/mesh_communicators.h"
#include "trainer/data/loader.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/caching_buffers.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/runtime/cpu/cpu_device.h"

namespace fsdp {
namespace {

constexpr float kWeight = 0.25f;

// Class v is scored by its own pixel and, from class 1 on, by pixel 0 as well.
float InitialWeight(int64_t i) {
  const int64_t v = i / testing::kPixels, pixel = i % testing::kPixels;
  return pixel == v || pixel == 0 ? kWeight : 0.0f;
}

EvalMeans MeansOfImages(bool clicks, const EvalMetric* metric, int64_t batches) {
  testing::ScoredImages model(clicks, metric);
  SessionOptions options;
  options.global_batch_size = 10;
  options.executor.micro_batch_size = 4;  // 4, 4 and 2 rows of a batch.
  options.train = false;
  CpuDevice device;
  const auto memory = MakeAllocator(device, options.executor, PlanMemory(model, options, 1));
  const MeshCommunicators communicators(
      MeshFor(options.executor, 0, 1), options.executor.communicators,
      [](const std::string&, const RankGroup&) { return std::unique_ptr<Communicator>(); });
  Session session(device, *memory, model, options, communicators);
  session.executor().Initialize([](const Parameter& p, int64_t begin, std::span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = p.name() == "weight" ? InitialWeight(begin + static_cast<int64_t>(i)) : 0;
    }
  });
  session.executor().Synchronize();
  const EvalLoader loader(std::make_shared<testing::LabelledImages>(clicks),
                          {.global_batch_size = 10, .micro_batch_size = 4}, batches);
  return *MeansOf(session, loader, /*stop=*/nullptr);
}

TEST(Evaluator, MeansAreOverAllBatches) {
  for (const bool clicks : {false, true}) {
    const EvalMetric* const metric = clicks ? &kNormalizedEntropy : &kAccuracy;
    const EvalMeans means = MeansOfImages(clicks, metric, 7);
    const int64_t outputs = clicks ? 1 : testing::kImageClasses;
    std::vector<float> weight, bias(outputs);
    for (int64_t i = 0; i < outputs * testing::kPixels; ++i) weight.push_back(InitialWeight(i));
    const double want = testing::SecondSumOf(clicks, weight, bias, 0, 70) / 70;
    EXPECT_EQ(means.second, want);
    EXPECT_TRUE(want > 0.1 && want < 0.9) << want;
    const EvalMeans alone = MeansOfImages(clicks, nullptr, 7);
    EXPECT_EQ(means.loss, alone.loss);
    EXPECT_EQ(alone.second, 0);
    EXPECT_NE(MeansOfImages(clicks, metric, 6).second, means.second);
  }
}

}  // namespace
}  // namespace fsdp
