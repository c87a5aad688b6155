// Steps of an optimizer over all ranks of a world, from gradients that a formula gives to every
// element.
#ifndef FSDP_TRAIN_TESTS_TRAINER_OPTIM_FORMULA_STEPS_H_
#define FSDP_TRAIN_TESTS_TRAINER_OPTIM_FORMULA_STEPS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "models/llama/llama.h"
#include "tests/testing/tiny_run.h"
#include "tests/trainer/comm/ranks.h"
#include "trainer/comm/mesh_communicators.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/pooled_allocator.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/optim/optimizer.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/kernel.h"

namespace fsdp::testing {

// "<state>/<parameter>", "factor/<tensor>.rows", and "row_v/<matrix>".
using Values = std::map<std::string, std::vector<float>>;

struct Case {
  bool llama = false;
  int world = 1;
  ExecutorOptions executor = {};
  OptimizerOptions optimizer = {};
  float size = 1;                                  // The largest gradient.
  std::vector<float> coefficients = {0.5f, 1, 2};  // By step.
  double lr = 0.02;
  // Gradients are multiplied by a power of two by element, so that rows and columns differ.
  bool uneven = false;
  int64_t vocabulary = 0;  // GPT-2's; 0: a small one.
  bool wide = false;       // GPT-2's matrices are large enough for codes.

  explicit Case(OptimizerKind kind) { optimizer.kind = kind; }
  float Gradient(const std::string& name, int64_t element, int64_t step) const;
  std::unique_ptr<Model> MakeModel() const {
    if (llama) return std::make_unique<Llama>(TinyRun::TinyLlama());
    Gpt2Config config = TinyRun::TinyConfig();
    if (vocabulary > 0) config.vocab_size = vocabulary;
    if (wide) config.hidden_size = 48, config.intermediate_size = 104;
    return std::make_unique<Gpt2>(config);
  }
};

// In [-1, 1), exact in fp32: number() of tools/reference/muon.py.
inline float Number(const std::string& name, int64_t element, int64_t step) {
  uint32_t key = 7;
  for (const char c : name) key = key * 31 + static_cast<unsigned char>(c);
  uint32_t word = static_cast<uint32_t>(element) * 2654435761u +
                  static_cast<uint32_t>(step) * 2246822519u + key * 3266489917u;
  for (const uint32_t factor : {2246822519u, 3266489917u}) word = (word ^ (word >> 15)) * factor;
  word ^= word >> 13;
  return static_cast<float>(static_cast<int32_t>(word) >> 8) * 0x1p-23f;
}

inline float Case::Gradient(const std::string& name, int64_t element, int64_t step) const {
  const float scale = uneven ? std::ldexp(1.0f, static_cast<int>(element / 5 % 6) - 3) : 1;
  return size * scale * Number(name, element, step);
}

inline std::vector<float> Floats(const View& shard) {
  const View host = Host(shard);
  std::vector<float> values(shard.NumElements());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = shard.dtype == DType::kFloat32 ? host.As<float>()[i]
                : shard.dtype == DType::kUInt8 ? static_cast<float>(host.As<uint8_t>()[i])
                                               : static_cast<float>(host.As<BFloat16>()[i]);
  }
  return values;
}

// One rank's steps. Appends "<state>/<parameter>" with the rank's elements, NaN elsewhere.
inline Values StepOnRank(const Case& c, Rank& rank) {
  const std::unique_ptr<Model> model = c.MakeModel();
  ExecutorOptions options = c.executor;
  options.whole = WholeRuleOf(c.optimizer);
  options.factored = c.optimizer.kind == OptimizerKind::kAdafactor;
  CpuDevice device;
  PooledAllocator allocator(device);
  const MeshCommunicators communicators(MeshFor(options, rank.rank, rank.size), /*queues=*/1,
                                        [&](const std::string& name, const RankGroup& group) {
                                          return rank.join_group(name, group, CommOptions());
                                        });
  Executor executor(device, allocator, *model, options, communicators);
  Optimizer optimizer(c.optimizer, executor, *model);
  executor.Initialize([](const Parameter& p, int64_t begin, std::span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = Number(p.name(), begin + i, 0);
  });
  executor.Synchronize();
  Stream& stream = executor.compute();
  const Layout& layout = executor.layout();
  float factor = 1;
  StepInputs step{.lr = c.lr};
  const View inputs(reinterpret_cast<std::byte*>(&step), DType::kUInt8, BlockShape<StepInputs>());
  const View coefficient(reinterpret_cast<std::byte*>(&factor), DType::kFloat32, Shape{1});
  for (size_t s = 0; s < c.coefficients.size(); ++s) {
    factor = c.coefficients[s];
    for (int f = 0; f < static_cast<int>(layout.flat_parameters.size()); ++f) {
      const View gradient = Host(executor.gradient(f));
      std::vector<float> values(gradient.NumElements());
      for (const Piece& p : PiecesOfShard(layout.flat_parameters[f], executor.shard_rank())) {
        for (int64_t i = 0; i < p.count; ++i) {
          values[p.at + i] =
              c.Gradient(p.parameter->name, p.begin + i, static_cast<int64_t>(s) + 1);
        }
      }
      std::copy(values.begin(), values.end(), gradient.As<float>());
    }
    optimizer.Begin(stream, inputs, coefficient);
    for (const Action& action : executor.schedule(Mode::kTrain).actions) {
      const auto flats = [&] { return layout.TrainableFlatParameters(action.unit); };
      std::optional<MatrixAction> matrices = MatrixAction::Of(action);
      if (action.kind == ActionKind::kOptimizer) {
        for (const int f : flats()) {
          optimizer.Step(stream, {f, executor.master(f), executor.gradient(f), coefficient});
        }
      } else if (matrices) {
        matrices->world = communicators.Over(Group::kWorld);
        for (const int f : action.unit < 0 ? std::span<const int>() : flats()) {
          if (!options.factored && !layout.flat_parameters[f].dtypes.whole) continue;
          matrices->shards.push_back({f, executor.master(f), executor.gradient(f), coefficient});
        }
        optimizer.RunMatrices(stream, *matrices);
      }
    }
    executor.Synchronize();
  }
  Values values;
  const auto collect = [&](const std::string& state, int f, const View& view) {
    if (view.NumElements() == 0) return;
    const std::vector<float> shard = Floats(view);
    const int64_t each = layout.flat_parameters[f].shard_size / view.NumElements();
    std::vector<bool> used(shard.size());
    for (const Piece& p : PiecesOfShard(layout.flat_parameters[f], executor.shard_rank())) {
      std::vector<float>& whole = values[state + "/" + p.parameter->name];
      whole.resize(p.parameter->size(), std::nanf(""));
      for (int64_t i = 0; i < p.count; ++i) {
        whole[p.begin + i] = shard[(p.at + i) / each];
        used[(p.at + i) / each] = true;
      }
    }
    for (size_t i = 0; i < used.size(); ++i) {
      Require(used[i] || shard[i] == 0, "padding of " + state);
    }
  };
  for (int f = 0; f < static_cast<int>(layout.flat_parameters.size()); ++f) {
    collect("master", f, executor.master(f));
    for (const ShardState& state : optimizer.state()) collect(state.name, f, state.shards[f]);
  }
  for (const OwnState& own : optimizer.own()) values["factor/" + own.name] = Floats(own.value);
  if (const Muon* const muon = optimizer.muon()) {
    for (const RowMoments& moments : muon->RowMomentsOf()) {
      std::vector<float>& whole = values["row_v/" + moments.name];
      whole.assign(moments.outputs, std::nanf(""));
      if (!moments.begin) continue;
      whole = Floats(muon->row_moments().Slice(*moments.begin, moments.outputs));
    }
  }
  return values;
}

// All elements, from whichever rank has them; replicas must have the same bits.
inline Values Steps(const Case& c) {
  std::vector<Values> ranks(c.world);
  for (const Outcome& outcome : RunThreadRanks(c.world, [&](Rank& rank) -> std::string {
         ranks[rank.rank] = StepOnRank(c, rank);
         return "";
       })) {
    EXPECT_EQ(outcome.error, "");
  }
  Values all;
  for (const Values& own : ranks) {
    for (const auto& [name, values] : own) {
      std::vector<float>& whole = all[name];
      whole.resize(values.size(), std::nanf(""));
      for (size_t i = 0; i < values.size(); ++i) {
        if (std::isnan(values[i])) continue;
        EXPECT_TRUE(std::isnan(whole[i]) || whole[i] == values[i]) << name << " " << i;
        whole[i] = values[i];
      }
    }
  }
  for (const auto& [name, values] : all) {
    EXPECT_TRUE(std::ranges::none_of(values, [](float v) { return std::isnan(v); })) << name;
  }
  return all;
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_OPTIM_FORMULA_STEPS_H_
