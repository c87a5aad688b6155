// Launches that every operation of a step states, against those of a step on the emulated device:
// one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "models/gpt2/config.h"
#include "models/llama/config.h"
#include "models/shape.h"
#include "tests/emulated/profiler.h"
#include "tests/testing/tiny_run.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/engine/step_operations.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/ops/cuda/cublaslt.h"
#include "trainer/ops/gemm_library.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/operation.h"

namespace fsdp::testing {
namespace {

enum class Products { kOwn, kLibrary, kDeterministic };

struct Case {
  std::string name;
  bool qwen = false;
  DType dtype = DType::kBFloat16;
  Recompute recompute = Recompute::kNone;
  Products products = Products::kLibrary;
  AttentionBackend attention = AttentionBackend::kOwn;
  std::function<void(SessionOptions&)> change = nullptr;
};

ModelShape ShapeOf(const Case& c) {
  if (!c.qwen) {
    Gpt2Config config = TinyRun::TinyConfig();
    config.intermediate_size = 64;  // A size that the library takes.
    return config;
  }
  LlamaConfig config = TinyRun::TinyLlama();
  config.hidden_size = 64;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.attention_output_bias = config.mlp_bias = false;
  config.tie_word_embeddings = true;
  return config;
}

// Two micro-batches.
SessionOptions OptionsOf(const Case& c) {
  SessionOptions options = TinyRun::TinyOptions();
  options.global_batch_size = 4;
  options.optimizer = {};
  options.lr = {LrShape::kConstant, 1e-3, 0, 100, 0.1};
  ExecutorOptions& e = options.executor;
  e.micro_batch_size = 2;
  e.micro_batches = 2;
  e.sample_length = 16;
  e.poison = false;
  e.documents = c.attention == AttentionBackend::kOwn;
  e.recompute = c.recompute;
  e.attention = c.attention;
  e.mixed_precision.param_dtype = c.dtype;
  if (c.change) c.change(options);
  return options;
}

struct Launched {
  std::string operation;
  Launches launches;
  std::string shape;  // Bytes that it reads and writes.

  bool operator==(const Launched& other) const {
    return operation == other.operation && launches == other.launches;
  }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
void PrintTo(const Launched& l, std::ostream* out) {
  *out << l.operation << " launches " << l.launches.kernels << " kernels and " << l.launches.copies
       << " copies" << l.shape;
}

std::vector<Launched> Stated(const Case& c) {
  const std::shared_ptr<Model> model = MakeModel(ShapeOf(c));
  std::vector<Launched> stated;
  ObserveStep(*model, OptionsOf(c), /*world=*/1, DeviceType::kCuda,
              [&](const Operation& o, StepResource) {
                if (!o.kernels.cuda) return;
                std::vector<KernelCost> costs = o.costs;
                for (KernelCost& cost : costs) {
                  cost.gpu = OnGpuByLibrary(cost, c.products == Products::kDeterministic);
                }
                std::string shape = ", of bytes";
                for (const Range& range : o.reads) shape += " " + std::to_string(range.bytes);
                shape += " to";
                for (const Range& range : o.writes) shape += " " + std::to_string(range.bytes);
                stated.push_back({o.name, LaunchesOf(costs), shape});
              });
  return stated;
}

void FillBatch(const Batch& whole, int64_t vocab) {
  const TokenBatch batch(whole);
  for (int64_t i = 0; i < batch.tokens.NumElements(); ++i) {
    batch.tokens.As<int32_t>()[i] = static_cast<int32_t>(i * 7 % vocab);
    batch.targets.As<int32_t>()[i] = static_cast<int32_t>(i * 5 % vocab);
    batch.weights.As<float>()[i] = 1;
    batch.positions.As<int32_t>()[i] = static_cast<int32_t>(i % batch.tokens.shape[1]);
  }
  for (int64_t i = 0; i < batch.sample_keys.NumElements(); ++i) {
    batch.sample_keys.As<int32_t>()[i] = static_cast<int32_t>(i);
  }
  OrderTokens(batch);
}

std::vector<Launched> LaunchedOnTheDevice(const Case& c) {
  const ModelShape shape = ShapeOf(c);
  const std::shared_ptr<Model> model = MakeModel(shape);
  const SessionOptions options = OptionsOf(c);
  const auto device = CreateDevice(DeviceType::kCuda, {});
  std::unique_ptr<GemmLibrary> library;
  if (c.products != Products::kOwn) {
    library = OpenCublasLt(FindGpuLibrary(GpuLibrary::kCublasLt, {}),
                           c.products == Products::kDeterministic);
  }
  const auto memory =
      MakeAllocator(*device, options.executor,
                    PlanMemory(*model, options, 1, /*traffic=*/nullptr, DeviceType::kCuda));
  const MeshCommunicators communicators(
      MeshFor(options.executor, 0, 1), options.executor.communicators,
      [](const std::string&, const RankGroup&) { return std::unique_ptr<Communicator>(); });
  Session session(*device, *memory, *model, options, communicators);
  if (library) session.executor().UseForProducts(*library);
  session.executor().Initialize([](const Parameter&, int64_t, std::span<float> values) {
    std::fill(values.begin(), values.end(), 0.01f);
  });
  session.executor().Synchronize();

  ProfileEmulatedRanges();
  session.Train(1, session.FullTargets(), /*save=*/false,
                [&](int, const Batch& batch) { FillBatch(batch, VocabSize(shape)); });
  std::vector<Launched> launched;
  for (const EmulatedRange& range : TakeEmulatedRanges()) {
    const EmulatedLaunches& l = range.launches;
    launched.push_back({range.name, {l.kernels + l.library_calls, l.copies + l.fills}, ""});
  }
  session.executor().Synchronize();
  EXPECT_GT(session.executor().Result(0).loss, 0);
  return launched;
}

class LaunchesTest : public ::testing::TestWithParam<Case> {};

TEST_P(LaunchesTest, AreWhatOperationsState) {
  const std::vector<Launched> stated = Stated(GetParam()),
                              launched = LaunchedOnTheDevice(GetParam());
  ASSERT_GT(stated.size(), 50);
  ASSERT_EQ(stated.size(), launched.size());
  for (size_t i = 0; i < stated.size(); ++i) EXPECT_EQ(stated[i], launched[i]) << "operation " << i;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const bool qwen : {false, true}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
        for (const Products products : {Products::kOwn, Products::kLibrary}) {
          const std::string name = std::string(qwen ? "qwen" : "gpt2") + "_" +
                                   std::string(Name(dtype)) +
                                   (recompute == Recompute::kFull ? "_again" : "") +
                                   (products == Products::kOwn ? "_own_kernels" : "");
          cases.push_back({name, qwen, dtype, recompute, products});
        }
      }
    }
    const std::string model = qwen ? "qwen" : "gpt2";
    cases.push_back({.name = model + "_deterministic",
                     .qwen = qwen,
                     .products = Products::kDeterministic,
                     .attention = AttentionBackend::kCudnnDeterministic});
    cases.push_back(
        {.name = model + "_cudnn", .qwen = qwen, .attention = AttentionBackend::kCudnn});
    cases.push_back({.name = model + "_math", .qwen = qwen, .attention = AttentionBackend::kMath});
    cases.push_back({.name = model + "_all_bf16", .qwen = qwen, .change = [](SessionOptions& o) {
                       FsdpOptions::MixedPrecision& p = o.executor.mixed_precision;
                       p.grad_dtype = p.reduce_dtype = p.master_dtype = DType::kBFloat16;
                       o.executor.state_dtype = DType::kBFloat16;
                     }});
    cases.push_back({.name = model + "_fp16", .qwen = qwen, .dtype = DType::kFloat16});
    cases.push_back(
        {.name = model + "_sgd_unclipped", .qwen = qwen, .change = [](SessionOptions& o) {
           o.optimizer.kind = OptimizerOptions::Kind::kSgd;
           o.executor.max_norm = 0;
           o.optimizer.ema = 0.9;
         }});
    cases.push_back(
        {.name = model + "_activations_on_the_host", .qwen = qwen, .change = [](SessionOptions& o) {
           o.executor.activation_offload = ActivationOffload::kHost;
         }});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Steps, LaunchesTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::testing
