#include "tests/testing/tiny_run.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "models/gpt2/gpt2.h"
#include "trainer/comm/thread/thread_communicator.h"
#include "trainer/core/philox.h"
#include "trainer/runtime/cpu/cpu_device.h"

namespace fsdp::testing {

void RunRanks(int world, const std::function<void(int)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

Gpt2Config TinyRun::TinyConfig() {
  Gpt2Config config;
  config.hidden_size = 24;
  config.intermediate_size = 52;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 3;
  config.vocab_size = 101;
  config.max_position_embeddings = 16;
  return config;
}

SessionOptions TinyRun::TinyOptions() {
  SessionOptions options;
  options.global_batch_size = 6;
  options.executor.seq_len = 11;
  options.executor.micro_batch_size = 2;
  options.executor.max_norm = 1;
  options.executor.poison = true;
  options.optimizer.kind = OptimizerOptions::Kind::kSgd;
  options.optimizer.momentum = 0.9;
  options.lr = {LrShape::kConstant, 0.1, 0, 100, 0.1};
  return options;
}

namespace {

// Row by row: sample (micro_batch * world + rank) * rows + row of the step's global batch.
void Fill(const TinyRun& run, int64_t step, int rank, int micro_batch, const Batch& batch) {
  const int64_t rows = batch.tokens.shape[0], seq = batch.tokens.shape[1];
  const RandomStream random(run.seed, "tokens", static_cast<uint64_t>(step));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t sample = (micro_batch * run.world + rank) * rows + row;
    const bool used = sample < run.options.global_batch_size;
    for (int64_t t = 0; t < seq; ++t) {
      const auto token = [&](int64_t at) {
        return static_cast<int32_t>(
            random.Below(sample * (seq + 1) + at, run.config.vocab_size / 2));
      };
      const int64_t i = row * seq + t;
      batch.tokens.As<int32_t>()[i] = used ? token(t) : 0;
      batch.targets.As<int32_t>()[i] = used ? token(t + 1) : 0;
      batch.weights.As<float>()[i] = used ? 1.0f : 0.0f;
      batch.positions.As<int32_t>()[i] = static_cast<int32_t>(t);
    }
  }
}

void Collect(const std::vector<UnitLayout>& units, const Executor& executor, bool gradients,
             float scale, std::map<std::string, std::vector<float>>& out) {
  for (size_t u = 0; u < units.size(); ++u) {
    const View& shard = gradients ? executor.gradient(u) : executor.master(u);
    for (const Piece& piece : PiecesOfShard(units[u], executor.shard_rank())) {
      std::vector<float>& values = out[piece.parameter->name];
      values.resize(piece.parameter->size());
      for (int64_t i = 0; i < piece.count; ++i) {
        values[piece.begin + i] = scale * shard.As<float>()[piece.at + i];
      }
    }
  }
}

}  // namespace

TinyResult Train(const TinyRun& given) {
  TinyRun run = given;
  ExecutorOptions& executor_options = run.options.executor;
  const int64_t wave = executor_options.micro_batch_size * run.world;
  executor_options.micro_batches =
      static_cast<int>((run.options.global_batch_size + wave - 1) / wave);
  auto gather = CreateThreadCommunicators(run.world);
  auto reduce = CreateThreadCommunicators(run.world);
  TinyResult result;
  std::mutex mutex;  // Guards result.
  RunRanks(run.world, [&](int rank) {
    Gpt2 model(run.config);
    const MemoryPlan plan = PlanMemory(model, run.options, run.world);
    CpuOptions device_options;
    if (run.check) device_options.checker = std::make_shared<StreamChecker>();
    CpuDevice device(device_options);
    PlannedAllocator allocator(device, plan);
    const bool one = executor_options.communicators == 1;
    Session session(device, allocator, model, run.options, rank, run.world, gather[rank].get(),
                    one ? gather[rank].get() : reduce[rank].get());
    Executor& executor = session.executor();
    executor.Initialize([&](const Parameter& p, int64_t begin, std::span<float> values) {
      FillInitial(p, run.seed, begin, values);
      // Norms and biases away from 1 and 0, where mistakes would not show.
      const RandomStream random(run.seed, p.name(), 1);
      for (size_t i = 0; i < values.size(); ++i) values[i] += 0.05f * random.Normal(begin + i);
    });
    std::vector<float> losses, norms;
    const auto collect = [&](int64_t step) {
      const StepScalars scalars = executor.Result(step);
      losses.push_back(scalars.loss);
      norms.push_back(scalars.grad_norm);
    };
    for (int64_t step = 1; step <= run.steps; ++step) {
      if (step > 2) collect(step - 3);
      if (run.park) {
        executor.Synchronize();
        device.Park();
      }
      session.Train(step, run.options.FullTargets(), {},
                    [&run, step, rank](int m, const Batch& b) { Fill(run, step, rank, m, b); });
      if (run.park) device.Release();
    }
    for (int64_t step = std::max(0, run.steps - 2); step < run.steps; ++step) collect(step);
    session.Eval(1.0f / static_cast<float>(wave * executor_options.seq_len),
                 [&run, rank](int m, const Batch& b) { Fill(run, 1000, rank, m, b); });
    const float eval_loss = executor.Result(run.steps).loss;
    executor.Synchronize();
    std::lock_guard lock(mutex);
    Collect(executor.layout().units, executor, false, 1, result.parameters);
    Collect(executor.layout().units, executor, true, 1, result.gradients);
    if (rank == 0) {
      result.losses = losses;
      result.grad_norms = norms;
      result.eval_loss = eval_loss;
    }
  });
  return result;
}

}  // namespace fsdp::testing
