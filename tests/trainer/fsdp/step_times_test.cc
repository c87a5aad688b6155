// On the sim device time is arithmetic: each part of a step is what its operations cost.
#include "trainer/fsdp/step_times.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "trainer/autograd/tape.h"
#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/nn/model.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

constexpr double kForward = 1e3, kBackward = 1e4, kOptimizer = 1e6;  // FLOPs.

void Work(Stream& stream, const char* name, double flops) {
  Operation operation{name, {}, {}, {}};
  operation.costs = {Cost{.flops = flops}};
  stream.Enqueue(operation);
}

// An embedding and two blocks.
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
    for (int s = 0; s < 3; ++s) {
      x = tape.Segment(s, x, /*recomputable=*/s > 0, [&](Tape& t, const Var& in) {
        Work(t.stream(), "forward", kForward);
        Var y = t.NewVar(Shape{4}, DType::kFloat32);
        t.Push([&t, in_grad = in.grad, y_grad = y.grad] {
          Tape::Take(y_grad);
          Work(t.stream(), "backward", kBackward);
          if (in_grad) t.Add(in_grad, t.New(Shape{4}, DType::kFloat32));
        });
        return y;
      });
    }
    tape.Add(x.grad, tape.New(Shape{4}, DType::kFloat32));
  }
  BatchSpec Inputs(int64_t length) const override { return TokenInputs(length, 8); }

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<ModelSegment> segments_;
};

struct Measured {
  std::vector<StepTimes> steps;
  double bytes_given = 0;  // In one step.
};

Measured Measure(const SimModel& machine, const ExecutorOptions& options, int world,
                 int steps = 1) {
  Toy model;
  SimDevice device(machine);
  PlanRecorder recorder;
  const MeshCommunicators communicators(MeshFor(options, 0, world), options.communicators,
                                        ConnectSim);
  Executor executor(device, recorder, model, options, communicators);
  Executor::Step step;
  step.load = [](int, const Batch&) {};
  step.optimize = [](Stream& stream, const ShardUpdate&) { Work(stream, "optimize", kOptimizer); };
  Measured measured;
  for (int i = 0; i < steps; ++i) {
    executor.Run(step);
    measured.steps.push_back(executor.Account(i).times);
  }
  for (const Communicator* c : communicators.all()) {
    for (const Collective kind :
         {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce}) {
      measured.bytes_given += static_cast<double>(c->bytes_given(kind)) / steps;
    }
  }
  return measured;
}

double Sum(const StepTimes& t) {
  return t.data + t.forward + t.recompute + t.backward + t.optimizer + t.communication + t.offload;
}

TEST(StepTimes, EachPartIsWhatItsOperationsCost) {
  ExecutorOptions options;
  options.micro_batches = 3;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    options.recompute = recompute;
    const Measured got = Measure({.s_per_flop = 1}, options, 1, 2);
    for (const StepTimes& t : got.steps) {
      EXPECT_EQ(t.forward, 3 * 3 * kForward);
      EXPECT_EQ(t.recompute, recompute == Recompute::kFull ? 3 * 2 * kForward : 0);
      // The rest of it: sums of gradients, and of squares.
      EXPECT_GE(t.backward, 3 * 3 * kBackward);
      EXPECT_LT(t.backward, 3 * 3 * kBackward + kForward);
      EXPECT_GE(t.optimizer, 3 * kOptimizer);
      EXPECT_LT(t.optimizer, 3 * kOptimizer + kBackward);
      EXPECT_EQ(t.data, 0);
      EXPECT_EQ(t.communication, 0);
      EXPECT_EQ(Sum(t), t.end - t.begin);
    }
    EXPECT_EQ(got.steps[1].begin, got.steps[0].end);
  }
}

// Time is bytes: slots are cleared for every micro-batch, and the update comes once.
TEST(StepTimes, ClearingAGradientIsBackwards) {
  ExecutorOptions options;
  const StepTimes one = Measure({.s_per_byte = 1}, options, 2).steps[0];
  options.micro_batches = 3;
  const StepTimes three = Measure({.s_per_byte = 1}, options, 2).steps[0];
  constexpr double kCleared = 3 * 512 * 4;  // Units, elements with padding, bytes.
  EXPECT_GE(one.backward, kCleared);
  EXPECT_LT(one.backward, 1.1 * kCleared);
  EXPECT_EQ(three.backward, 3 * one.backward);
  EXPECT_GT(one.optimizer, 0);
  EXPECT_EQ(three.optimizer, one.optimizer);
}

// One queue and no time for compute: all of it is waited for. Long compute: what overlaps is not.
TEST(StepTimes, CommunicationIsWhatComputeWaitsFor) {
  ExecutorOptions options;
  options.communicators = 1;
  const Measured exposed = Measure({.s_per_link_byte = 1}, options, 2);
  EXPECT_GT(exposed.bytes_given, 0);
  EXPECT_EQ(exposed.steps[0].communication, exposed.bytes_given);
  EXPECT_EQ(Sum(exposed.steps[0]), exposed.bytes_given);
  EXPECT_EQ(exposed.steps[0].end - exposed.steps[0].begin, exposed.bytes_given);

  const Measured hidden = Measure({.s_per_flop = 1, .s_per_link_byte = 1}, options, 2);
  EXPECT_GT(hidden.steps[0].communication, 0);
  EXPECT_LT(hidden.steps[0].communication, exposed.bytes_given);
  EXPECT_EQ(hidden.steps[0].forward, 3 * kForward);
}

TEST(StepTimes, DataIsWhatComputeWaitsFor) {
  ExecutorOptions options;
  options.micro_batch_size = 4;
  options.sample_length = 8;
  // Tokens, their order, targets, positions and weights, 4 bytes each, and the rows' keys, 8 bytes
  // each in a place of 64; written on the host, then read and written on their way to the device;
  // while compute clears seven scalars or so.
  const double loaded = 3 * (5 * 4 * 32 + 64);
  const StepTimes t = Measure({.s_per_byte = 1}, options, 1).steps[0];
  EXPECT_GT(t.data, loaded - 100);
  EXPECT_LE(t.data, loaded);
  EXPECT_EQ(Sum(t), t.end - t.begin);
}

}  // namespace
}  // namespace fsdp
