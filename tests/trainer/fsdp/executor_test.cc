// A model whose code and schedule part ways is stopped, with both names. On the sim device: no
// numbers are needed.
#include "trainer/fsdp/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/autograd/tape.h"
#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/core/errors.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/pooled_allocator.h"
#include "trainer/nn/model.h"
#include "trainer/ops/elementwise.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

// Three segments of one vector each, entered in the given order; `uses` is the segment whose vector
// the code of each one looks at.
class Toy final : public Model {
 public:
  Toy() {
    for (const char* name : {"embedding", "h.0", "h.1"}) {
      parameters_.push_back(
          std::make_unique<Parameter>(std::string(name) + ".w", Shape{300}, Init{}, false));
      segments_.push_back({name, name[0] == 'h', {parameters_.back().get()}});
    }
  }
  const std::vector<ModelSegment>& segments() const override { return segments_; }
  void Loss(Tape& tape, const Batch&, float, View) const override {
    Var x;
    for (const int s : order) {
      x = tape.Segment(s, x, /*recomputable=*/s > 0, [&, s](Tape& t, const Var& in) {
        parameters_[uses[s]]->value();
        if (gradient_in_forward) parameters_[s]->grad();
        Var y = t.NewVar(Shape{4}, DType::kFloat32);
        t.Push([&t, this, s, in_grad = in.grad, y_grad = y.grad] {
          Tape::Take(y_grad);
          parameters_[uses[s]]->value();
          parameters_[uses[s]]->grad();
          if (in_grad) t.Add(in_grad, t.New(Shape{4}, DType::kFloat32));
        });
        return y;
      });
    }
    tape.Add(x.grad, tape.New(Shape{4}, DType::kFloat32));
  }
  BatchSpec Inputs(int64_t length) const override { return TokenInputs(length, 8); }
  const Parameter& parameter(int segment) const { return *parameters_[segment]; }

  std::vector<int> order{0, 1, 2};
  std::vector<int> uses{0, 1, 2};
  bool gradient_in_forward = false;

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<ModelSegment> segments_;
};

void TrainOneStep(Toy& model, Strategy strategy = Strategy::kFullShard, int world = 2) {
  ExecutorOptions options;
  options.sharding_strategy = strategy;
  SimDevice device;
  PlanRecorder recorder;
  const MeshCommunicators communicators(MeshFor(options, /*rank=*/0, world), options.communicators,
                                        ConnectSim);
  Executor executor(device, recorder, model, options, communicators);
  Executor::Step step;
  step.load = [](int, const Batch&) {};
  step.optimize = [](Stream&, const ShardUpdate&) {};
  executor.Run(step);
}

TEST(Executor, FollowsTheModel) {
  Toy model;
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    for (const int world : {1, 2}) TrainOneStep(model, strategy, world);
  }
}

TEST(ExecutorDeathTest, AnotherOrderAbortsWithBothNames) {
  Toy model;
  model.order = {0, 2, 1};
  EXPECT_DEATH(TrainOneStep(model), "entering h.1 forward, but the schedule says h.0 forward");
  model.order = {0, 1, 1};
  EXPECT_DEATH(TrainOneStep(model), "entering h.0 forward, but the schedule says h.1 forward");
}

TEST(ExecutorDeathTest, ASegmentLeftOutAborts) {
  Toy model;
  model.order = {0, 1};
  EXPECT_DEATH(TrainOneStep(model), "entering h.0 backward, but the schedule says h.1 forward");
}

TEST(ExecutorDeathTest, AParameterOfAnotherUnitAborts) {
  Toy model;
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    model.uses = {0, 2, 2};  // Whether or not it happens to be in memory.
    EXPECT_DEATH(TrainOneStep(model, strategy), "h.1.w is used while its unit is not gathered");
  }
}

TEST(ExecutorDeathTest, AGradientInForwardAborts) {
  Toy model;
  model.gradient_in_forward = true;
  EXPECT_DEATH(TrainOneStep(model), "embedding.w is given a gradient outside");
}

TEST(ExecutorDeathTest, ParametersAreOutOfReachBetweenSteps) {
  for (const int world : {1, 2}) {
    Toy model;
    TrainOneStep(model, Strategy::kFullShard, world);
    for (const int segment : {0, 1, 2}) {
      EXPECT_DEATH(model.parameter(segment).value(), "not gathered");
      EXPECT_DEATH(model.parameter(segment).grad(), "outside");
    }
  }
}

// One rank of two, whose updates write their masters, under the stream checker.
class ExecutorOrder : public ::testing::Test {
 protected:
  ExecutorOrder() {
    step_.load = [](int, const Batch&) {};
    step_.optimize = [](Stream& stream, const ShardUpdate& update) {
      Fill(stream, 0, update.master);
    };
  }

  void HoldUpdates(const EventPtr& copied) {
    for (int u = 0; u < static_cast<int>(executor_.layout().units.size()); ++u) {
      executor_.HoldUpdate(u, copied);
    }
  }

  int races_ = 0;
  SimDevice device_{
      {.s_per_byte = 1},
      std::make_shared<StreamChecker>([this](const StreamChecker::Race&) { ++races_; })};
  Toy model_;
  const ExecutorOptions options_;
  PlanRecorder recorder_;
  const MeshCommunicators communicators_{MeshFor(options_, /*rank=*/0, /*world=*/2),
                                         static_cast<int>(options_.communicators), ConnectSim};
  Executor executor_{device_, recorder_, model_, options_, communicators_};
  Executor::Step step_;
};

// Whoever writes weights between two training steps, the gathers of the second come after.
TEST_F(ExecutorOrder, WorkBetweenStepsComesBeforeTheNext) {
  for (int i = 0; i < 3; ++i) executor_.Run(step_);
  for (const int flat : {0, 1, 2}) Fill(executor_.compute(), 0, executor_.master(flat));
  executor_.Run(step_);
  executor_.Synchronize();
  EXPECT_EQ(races_, 0);
}

// Behind the updates of one step, before those of the next, or before what comes between.
TEST_F(ExecutorOrder, ACopyHasAStreamOfItsOwn) {
  const std::unique_ptr<Stream> copies = device_.CreateStream("copies");
  const View copy = executor_.NewBuffer(executor_.master(1).NumElements(), DType::kFloat32);
  for (const bool steps : {true, false}) {
    for (int i = 0; i < 2; ++i) executor_.Run(step_);
    executor_.WaitUntilLanded(*copies);
    Copy(*copies, executor_.master(1), copy);
    HoldUpdates(copies->Record());
    if (steps) {
      executor_.Run(step_);
    } else {
      Fill(executor_.compute(), 0, executor_.master(1));
    }
  }
  executor_.Synchronize();
  EXPECT_EQ(races_, 0);
}

// Nor does a unit wait for the copy of one that is updated behind it.
TEST_F(ExecutorOrder, ACopyHoldsItsOwnUnit) {
  const std::unique_ptr<Stream> copies = device_.CreateStream("copies");
  const View copy = executor_.NewBuffer(executor_.master(1).NumElements(), DType::kFloat32);
  for (const int unit : {2, 1}) {
    executor_.Run(step_);
    executor_.Synchronize();
    executor_.WaitUntilLanded(*copies);
    Copy(*copies, executor_.master(1), copy);
    executor_.HoldUpdate(unit, copies->Record());
    executor_.Run(step_);
    executor_.Synchronize();
    EXPECT_EQ(races_ == 0, unit == 1) << unit;
    races_ = 0;
  }
}

// Work before the updates runs beside it.
TEST_F(ExecutorOrder, ACopyHoldsNothingButUpdates) {
  const std::unique_ptr<Stream> copies = device_.CreateStream("copies");
  const View copy = executor_.NewBuffer(1 << 20, DType::kFloat32);
  executor_.Run(step_);
  executor_.Synchronize();
  device_.StartTrace();
  executor_.WaitUntilLanded(*copies);
  Fill(*copies, 0, copy);  // Takes longer than the step.
  HoldUpdates(copies->Record());
  executor_.Run(step_);
  executor_.Synchronize();
  std::map<std::string, double> ends;
  for (const Span& span : device_.TakeTrace()) {
    ends[span.stream] = std::max(ends[span.stream], span.end_s);
  }
  EXPECT_GT(ends["reduce"], 0);
  EXPECT_LT(ends["reduce"], ends["copies"]);
  EXPECT_GT(ends["compute"], ends["copies"]);
}

// A device that drops nothing goes on with the batch, so there is no token in it that no table has:
// neither where loading fails, nor where a load behind it is dropped.
TEST(Executor, BatchOfAFailedLoadHoldsNothing) {
  Toy model;
  ExecutorOptions options;
  options.sample_length = 4;
  CpuDevice device;
  const MeshCommunicators communicators(MeshFor(options, /*rank=*/0, /*world=*/1),
                                        options.communicators, ConnectSim);
  PooledAllocator memory(device);
  Executor executor(device, memory, model, options, communicators);
  Executor::Step step;
  View tokens;
  step.load = [&](int, const Batch& host) {
    tokens = TokenBatch(host).tokens;
    std::fill_n(tokens.As<int32_t>(), tokens.NumElements(), 1 << 30);
    throw DataError("no such token");
  };
  step.optimize = [](Stream&, const ShardUpdate&) {};
  executor.Run(step);
  EXPECT_THROW(executor.Synchronize(), DataError);
  ASSERT_GT(tokens.NumElements(), 0);
  for (int64_t i = 0; i < tokens.NumElements(); ++i) EXPECT_EQ(tokens.As<int32_t>()[i], 0);
}

}  // namespace
}  // namespace fsdp
