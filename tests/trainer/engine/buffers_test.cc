// A model's buffers through whole steps: docs/design.md, section 5. That no setting changes their
// bits is in graph_test.cc.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/tiny_run.h"
#include "tests/testing/toy_graph.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/caching_buffers.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/nn/initial_values.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp::testing {
namespace {

constexpr const char *kMean = "stem.running_mean", *kCount = "stem.num_batches_tracked",
                     *kBlockMean = "h.2.running_mean";

TinyRun OfTheGraph() {
  TinyRun run;
  run.model = [] { return std::make_unique<ToyGraph>(); };
  run.rows = ToyGraph::Rows();
  return run;
}

// Images of the step's samples [first, last), one behind the other.
std::vector<std::vector<float>> Images(const TinyRun& run, int step, int64_t first, int64_t last) {
  const BatchSpec spec = ToyGraph::Spec();
  std::vector<std::byte> bytes(static_cast<size_t>(BatchBytes(spec, 1)) + 64);
  void* at = bytes.data();
  size_t space = bytes.size();
  const Batch batch =
      CarveBatch(spec, 1, static_cast<std::byte*>(std::align(64, bytes.size() - 64, at, space)));
  std::vector<std::vector<float>> images;
  for (int64_t place = first; place < last; ++place) {
    run.rows->Fill((step - 1) * run.options.global_batch_size + place, 0, batch);
    const float* image = batch.inputs[0].As<float>();
    images.emplace_back(image, image + batch.inputs[0].NumElements());
  }
  return images;
}

// The running mean of the images, in float64, as nn/buffer.h says: each rank's own over its
// micro-batches, and the mean over ranks behind the step. Rows past the global batch are left over.
std::vector<double> MeanOfImages(const TinyRun& run) {
  const int64_t rows = run.options.executor.micro_batch_size,
                global = run.options.global_batch_size;
  std::vector<double> mean(15, 0.5);
  for (int step = 1; step <= run.steps; ++step) {
    std::vector<double> sum(mean.size());
    for (int rank = 0; rank < run.world; ++rank) {
      std::vector<double> own = mean;
      for (int64_t wave = 0; wave * rows * run.world < global; ++wave) {
        const int64_t first = (wave * run.world + rank) * rows;
        const auto images = Images(run, step, first, std::min(first + rows, global));
        if (first >= global) continue;
        for (size_t i = 0; i < own.size(); ++i) {
          double of_batch = 0;
          for (const auto& image : images) of_batch += image[i];
          of_batch /= static_cast<double>(images.size());
          own[i] += double{kCentredMomentum} * (of_batch - own[i]);
        }
      }
      for (size_t i = 0; i < own.size(); ++i) sum[i] += own[i];
    }
    for (size_t i = 0; i < mean.size(); ++i) mean[i] = sum[i] / run.world;
  }
  return mean;
}

// Once a micro-batch, whether it is run again or not; rows left over count in none.
TEST(Buffers, HoldTheRunningMeanOfTheBatches) {
  for (const int world : {1, 2, 3, 4}) {  // The last of 4 ranks with 2 rows each has none.
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      TinyRun run = OfTheGraph();
      run.world = world;
      run.options.executor.recompute = recompute;
      if (recompute == Recompute::kFull) {
        run.options.executor.sharding_strategy = Strategy::kNoShard;
      }
      SCOPED_TRACE(world);
      const TinyResult result = Train(run);
      const std::vector<double> want = MeanOfImages(run);
      ASSERT_EQ(result.buffers.at(kMean).size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(result.buffers.at(kMean)[i], want[i], 1e-6) << i;
        EXPECT_GT(std::abs(want[i] - 0.5), 1e-3) << i;
      }
      const int waves = (6 + 2 * world - 1) / (2 * world);
      EXPECT_EQ(result.buffers.at(kCount), std::vector<float>{static_cast<float>(3 * waves)});
    }
  }
}

// With one micro-batch a step, in equal parts, the mean of the ranks' means is the batch's.
TEST(Buffers, WorldsAgreeWithOneRank) {
  TinyRun run = OfTheGraph();
  run.options.executor.micro_batch_size = 6;
  const TinyResult one = Train(run);
  for (const int world : {2, 3, 6}) {
    run.world = world;
    run.options.executor.micro_batch_size = 6 / world;
    const TinyResult other = Train(run);
    EXPECT_NEAR(other.eval_loss, one.eval_loss, 2e-6 * one.eval_loss);
    for (const auto& [name, values] : one.buffers) {
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(other.buffers.at(name)[i], values[i], 1e-5) << name << "[" << i << "]";
      }
    }
  }
}

// A loss scale that overflows: nothing is learned, weights or statistics.
TEST(Buffers, StayWhereTheWeightsStay) {
  TinyRun run = OfTheGraph();
  FsdpOptions::MixedPrecision& mixed = run.options.executor.mixed_precision;
  mixed.param_dtype = mixed.grad_dtype = mixed.reduce_dtype = DType::kFloat16;
  mixed.scaler.init_scale = 0x1p60;
  run.steps = 1;
  const TinyResult skipped = Train(run);
  EXPECT_EQ(skipped.parameters, skipped.initial);
  EXPECT_EQ(skipped.buffers.at(kMean), std::vector<float>(15, 0.5f));
  EXPECT_EQ(skipped.buffers.at(kBlockMean), std::vector<float>(ToyGraph::kWidth, 0.0f));
  EXPECT_EQ(skipped.buffers.at(kCount), std::vector<float>{0});
  mixed.scaler.init_scale = 1;
  const TinyResult learned = Train(run);
  EXPECT_NE(learned.parameters, learned.initial);
  EXPECT_NE(learned.buffers.at(kMean), skipped.buffers.at(kMean));
}

// A copy for a save is of one step, however far the run is; and the stream checker sees no race.
TEST(Buffers, ASnapshotIsOfItsStep) {
  TinyRun run = OfTheGraph();
  run.options.executor.micro_batches = 3;
  run.options.snapshot = true;
  const auto model = run.model();
  CpuDevice device({.checker = std::make_shared<StreamChecker>()});
  const auto memory =
      MakeAllocator(device, run.options.executor, PlanMemory(*model, run.options, 1));
  const MeshCommunicators communicators(
      MeshFor(run.options.executor, 0, 1), run.options.executor.communicators,
      [](const std::string&, const RankGroup&) { return std::unique_ptr<Communicator>(); });
  Session session(device, *memory, *model, run.options, communicators);
  session.executor().Initialize([](const Parameter& p, int64_t begin, std::span<float> values) {
    FillInitial(p, 7, begin, values);
  });
  const auto train = [&](int64_t step) {
    session.Train(step, 6, /*save=*/false, [&, step](int m, const Batch& batch) {
      for (int64_t row = 0; row < 2; ++row)
        run.rows->Fill((step - 1) * 6 + 2 * m + row, row, batch);
      run.rows->Derive(batch);
    });
  };
  const auto count = [](const std::vector<BufferState>& buffers) {
    EXPECT_EQ(buffers.at(1).name, kCount);
    return *buffers.at(1).value.As<int64_t>();
  };
  train(1);
  const Session::Snapshot snapshot = session.TakeSnapshot();
  for (const int64_t step : {2, 3, 4}) train(step);
  session.executor().Synchronize();
  snapshot.taken->Synchronize();
  EXPECT_EQ(count(snapshot.values.buffers), 3);
  EXPECT_EQ(count(session.kept().buffers), 12);
  const Session::Snapshot next = session.TakeSnapshot();
  next.taken->Synchronize();
  EXPECT_EQ(count(next.values.buffers), 12);
}

TEST(Buffers, AreInThePlanTwice) {
  const TinyRun run = OfTheGraph();
  const MemoryPlan plan = PlanMemory(*run.model(), run.options, 1);
  const Layout layout = MakeLayout(ShapesOf(*run.model()), {}, 1);
  int64_t parameters = 0;
  for (const FlatParameter& flat : layout.flat_parameters) parameters += 4 * flat.size;
  // Three buffers, a cache line each.
  EXPECT_EQ(plan.bytes(MemoryKind::kParameters, MemoryPlace::kDevice), parameters + 3 * 64);
}

TEST(Buffers, TwoOfOneNameAreRefused) {
  class Doubled final : public Model {
   public:
    Doubled() : segments_(graph_.segments()) { segments_[0].buffers.push_back(&again_); }
    const std::vector<ModelSegment>& segments() const override { return segments_; }
    BatchSpec Inputs(int64_t length) const override { return graph_.Inputs(length); }
    void Loss(Tape& tape, const Batch& batch, float scale, View loss) const override {
      graph_.Loss(tape, batch, scale, loss);
    }
    ToyGraph graph_;
    ModelBuffer again_{"classes", Shape{1}, DType::kFloat32, 0};
    std::vector<ModelSegment> segments_;
  } doubled;
  try {
    PlanMemory(doubled, TinyRun::TinyOptions(), 1);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "[ModelBuffers] two of the model's tensors are called classes");
  }
}

}  // namespace
}  // namespace fsdp::testing
