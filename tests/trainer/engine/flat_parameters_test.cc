// Units that are more than one flat parameter, and flat parameters that are gathered in another
// dtype than their masters'.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/testing/everything.h"
#include "tests/testing/tiny_run.h"
#include "trainer/autograd/tape.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/nn/model.h"
#include "trainer/ops/elementwise.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/kernel.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp::testing {
namespace {

// In two flat parameters a unit, of which one would have state in bf16: SGD without momentum keeps
// none, so that nothing else differs.
TinyRun Plain(bool split) {
  TinyRun run;
  run.options.executor.max_norm = 0;
  run.options.optimizer.momentum = 0;
  if (split) {
    run.options.executor.dtypes = [](const Parameter& p) {
      DTypes dtypes;
      if (p.name().ends_with("weight")) dtypes.state = DType::kBFloat16;
      return dtypes;
    };
  }
  return run;
}

// Squares are summed in another order, so norms agree to rounding; where nothing is clipped,
// nothing follows from them.
TEST(FlatParameters, SeveralOfAUnitAreOne) {
  for (const std::vector<ParameterGroup>& groups :
       {std::vector<ParameterGroup>{}, {{"*.h.1.*", {}, 1, true}, {"*.h.2.mlp*", {}, 1, true}}}) {
    for (const int world : {1, 2, 3}) {
      if (!AllCases() && world != 1 + static_cast<int>(Part(3))) continue;
      for (const Strategy strategy :
           {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
        for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kUnsharded}) {
          TinyRun one = Plain(false), several = Plain(true);
          for (TinyRun* run : {&one, &several}) {
            run->world = world;
            run->options.optimizer.groups = groups;
            run->options.executor.sharding_strategy = strategy;
            run->options.executor.gradient_accumulation = accumulation;
            run->options.executor.micro_batch_size = 1;
          }
          const TinyResult want = Train(one);
          TinyResult got = Train(several);
          SCOPED_TRACE("world " + std::to_string(world));
          ASSERT_EQ(got.grad_norms.size(), want.grad_norms.size());
          for (size_t i = 0; i < got.grad_norms.size(); ++i) {
            EXPECT_NEAR(got.grad_norms[i], want.grad_norms[i], 1e-6f * want.grad_norms[i]);
          }
          got.grad_norms = want.grad_norms;
          EXPECT_EQ(FirstDifference(got, want), "");
        }
      }
    }
  }
}

// Vectors whose gradient is one for each rank and micro-batch; `seen` gets the values that forward
// found.
class Ones final : public Model {
 public:
  static constexpr int64_t kSize = 300;

  Ones() {
    for (const char* name : {"embedding", "h.0", "h.1"}) {
      parameters_.push_back(
          std::make_unique<Parameter>(std::string(name) + ".w", Shape{kSize}, Init{}, false));
      segments_.push_back({name, name[0] == 'h', {parameters_.back().get()}});
      seen.emplace_back(4 * kSize);
    }
  }
  const std::vector<ModelSegment>& segments() const override { return segments_; }
  void Loss(Tape& tape, const Batch&, float, View) const override {
    Var x;
    for (int s = 0; s < 3; ++s) {
      x = tape.Segment(s, x, /*recomputable=*/false, [this, s](Tape& t, const Var& in) {
        const Parameter& p = *parameters_[s];
        Copy(t.stream(), p.value(), {seen[s].data(), p.value().dtype, p.shape()});
        Var y = t.NewVar(Shape{4}, DType::kFloat32);
        t.Push([&t, &p, in_grad = in.grad, y_grad = y.grad] {
          Tape::Take(y_grad);
          const TensorPtr ones = t.New(p.shape(), p.grad().dtype);
          Fill(t.stream(), 1, ones->view());
          Accumulate(t.stream(), ones->view(), p.grad());
          if (in_grad) t.Add(in_grad, t.New(Shape{4}, DType::kFloat32));
        });
        return y;
      });
    }
    if (tape.recording()) tape.Add(x.grad, tape.New(Shape{4}, DType::kFloat32));
  }
  BatchSpec Inputs(int64_t length) const override { return TokenInputs(length, 8); }

  BFloat16 Seen(int segment, int64_t i) const {
    return reinterpret_cast<const BFloat16*>(seen[segment].data())[i];
  }

  mutable std::vector<std::vector<std::byte>> seen;  // By segment, in the dtype that it was.

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<ModelSegment> segments_;
};

// This rank's part of what forward saw is its masters, rounded.
void RequireRounded(const Executor& executor, const Ones& model, const std::string& when) {
  for (int f = 0; f < 3; ++f) {
    const FlatParameter& flat = executor.layout().flat_parameters[f];
    Require(executor.master(f).dtype == DType::kFloat32, "a master is not fp32");
    Require(executor.compute_shard(f).dtype == DType::kBFloat16, "a compute shard is not bf16");
    for (const Piece& piece : PiecesOfShard(flat, executor.shard_rank())) {
      for (int64_t i = 0; i < piece.count; ++i) {
        const float master = Host(executor.master(f)).As<float>()[piece.at + i];
        Require(model.Seen(f, piece.begin + i).bits == BFloat16(master).bits,
                when + ": " + flat.name + "[" + std::to_string(piece.begin + i) + "] is " +
                    std::to_string(static_cast<float>(model.Seen(f, piece.begin + i))) +
                    ", its master " + std::to_string(master));
      }
    }
  }
}

std::string TrainOnes(Rank& rank, Strategy strategy) {
  SessionOptions options;
  options.global_batch_size = rank.size;
  options.optimizer.kind = OptimizerOptions::Kind::kSgd;
  options.lr = {LrShape::kConstant, 0.37, 0, 100, 0.1};
  options.executor.sharding_strategy = strategy;
  options.executor.poison = true;
  options.executor.dtypes = [](const Parameter&) { return DTypes{.compute = DType::kBFloat16}; };
  Ones model;
  CpuDevice device({.spin = false, .checker = std::make_shared<StreamChecker>()});
  PlannedAllocator allocator(device, PlanMemory(model, options, rank.size));
  const MeshCommunicators communicators(MeshFor(options.executor, rank.rank, rank.size),
                                        /*queues=*/2,
                                        [&](const std::string& name, const RankGroup& group) {
                                          return rank.join_group(name, group, {.timeout_s = 60});
                                        });
  Session session(device, allocator, model, options, communicators);
  Executor& executor = session.executor();
  const auto load = [](int, const Batch&) {};
  executor.Initialize([](const Parameter&, int64_t begin, std::span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 1 + 0.001f * static_cast<float>(begin + static_cast<int64_t>(i));
    }
  });
  const auto see = [&](const std::string& when) {
    session.Eval(1, load);
    executor.Synchronize();
    RequireRounded(executor, model, when);
  };
  see("at the start");
  for (int64_t step = 1; step <= 2; ++step) {
    const float before = Host(executor.master(0)).As<float>()[0];
    session.Train(step, session.FullTargets(), /*save=*/false, load);
    see("after step " + std::to_string(step));
    Require(Host(executor.master(0)).As<float>()[0] < before - 0.3f, "nothing was learnt");
  }
  for (int f = 0; f < 3; ++f) Host(executor.master(f)).As<float>()[0] = 7.77f;  // As a resume does.
  executor.MastersWritten();
  see("after a resume");
  Barrier(*rank.store, "done", rank.rank, rank.size);
  return "";
}

// Where they differ in dtype, what is gathered is a copy of the masters: from the start, after each
// update, and when somebody else has written them.
TEST(FlatParameters, ACopyInTheComputeDTypeIsGathered) {
  for (const int world : {1, 2}) {
    for (const Strategy strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      for (const Outcome& outcome :
           RunThreadRanks(world, [&](Rank& rank) { return TrainOnes(rank, strategy); })) {
        EXPECT_EQ(outcome.error, "") << "world " << world;
      }
    }
  }
}

// The planner has a line for the copy, half of the masters, and slots of half the size.
TEST(FlatParameters, ThePlanCountsBytes) {
  const auto plan = [](const DTypeRule& dtypes) {
    Ones model;
    SessionOptions options;
    options.eval = false;
    options.executor.dtypes = dtypes;
    return PlanMemory(model, options, 2);
  };
  const auto full = plan(nullptr);
  const auto half = plan([](const Parameter&) { return DTypes{.compute = DType::kBFloat16}; });
  const auto of = [](const MemoryPlan& plan, MemoryKind kind) { return plan.bytes(kind); };
  EXPECT_EQ(2 * of(half, MemoryKind::kParameters), 3 * of(full, MemoryKind::kParameters));
  EXPECT_EQ(of(half, MemoryKind::kGradients), of(full, MemoryKind::kGradients));
  // The root and two slots have values and gradients: values alone are half as large.
  EXPECT_EQ(4 * of(half, MemoryKind::kUnsharded), 3 * of(full, MemoryKind::kUnsharded));
}

TEST(FlatParameters, RefusesMastersThatItCannotUpdate) {
  Ones model;
  SessionOptions options;
  options.executor.dtypes = [](const Parameter&) { return DTypes{.master = DType::kFloat16}; };
  EXPECT_THROW(PlanMemory(model, options, 2), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp::testing
