// The same run on the CPU device and on the emulated CUDA device: every kernel of a step, streams
// and events, and ranks that meet in shared memory by way of pinned memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "models/dhen/config.h"
#include "models/llama/config.h"
#include "models/regnet/config.h"
#include "models/shape.h"
#include "models/t5/config.h"
#include "models/vit/config.h"
#include "tests/emulated/cudart.h"
#include "tests/testing/changed_rows.h"
#include "tests/testing/everything.h"
#include "tests/testing/tiny_run.h"
#include "tests/trainer/engine/quantized_reduce_model.h"
#include "trainer/data/clicks/click_store.h"
#include "trainer/data/synthetic/synthetic.h"
#include "trainer/nn/model.h"
#include "trainer/optim/muon.h"

namespace fsdp::testing {
namespace {

// 64 tokens a step; at a world of 3 one rank has nothing to do.
TinyRun Twin(bool qwen, DType dtype, int world) {
  TinyRun run;
  run.config.hidden_size = 96;
  run.config.intermediate_size = 160;
  run.config.num_hidden_layers = 2;
  run.config.num_attention_heads = 3;
  run.config.vocab_size = 1021;
  run.config.max_position_embeddings = 32;
  if (qwen) {  // The heads of Qwen2.5 0.5B.
    LlamaConfig config;
    config.hidden_size = 128;
    config.intermediate_size = 160;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 14;
    config.num_key_value_heads = 2;
    config.head_dim = 64;
    config.vocab_size = 1021;
    config.max_position_embeddings = 32;
    config.attention_bias = true;
    config.tie_word_embeddings = true;
    run.llama = config;
  }
  run.options.global_batch_size = 2;
  run.options.executor.micro_batch_size = 1;
  run.options.executor.sample_length = 32;
  run.options.executor.mixed_precision.param_dtype = dtype;
  run.steps = Everything() ? 10 : 5;
  run.world = world;
  run.ranks = RunProcessRanks;
  return run;
}

// Half a unit in the last place: what one rounding changes.
double Rounding(DType dtype) {
  return dtype == DType::kFloat32 ? 0x1p-24 : dtype == DType::kBFloat16 ? 0x1p-9 : 0x1p-12;
}

double Norm(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

std::vector<float> Minus(std::vector<float> x, const std::vector<float>& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] -= y.at(i);
  return x;
}

// Under AddressSanitizer every kernel runs in its own op's test.
#ifdef __SANITIZE_ADDRESS__
constexpr int kWorlds[] = {2};
constexpr DType kDTypes[] = {DType::kBFloat16};
#else
constexpr int kWorlds[] = {1, 2, 3};
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
#endif

// For every change each dtype with each world once over the two models.
bool IsLeftOut(bool qwen, DType dtype, int world) {
  if (std::size(kWorlds) == 1 || AllCases()) return false;
  return (static_cast<size_t>(dtype) + world) % 3 != (Part(3) + (qwen ? 1 : 0)) % 3;
}

using Case = std::tuple<bool, DType, int>;

class CudaTwinTest : public ::testing::TestWithParam<Case> {};

// `twin` on the CUDA device. `kinks`: so many ReLUs in a row. An input of theirs is off by a few
// roundings of those before it; where it lies that near 0, as a share of about 4 roundings does, it
// is on here and off there, so a gradient that passes them is off by the root of twice their
// shares. In fp16, whose roundings are small, that is most of it: norm weights of T5 with ReLUs are
// 2.7 times as far off as 64 roundings, with gated GELUs half as far. `growth`: of a difference
// between gradients, in an update.
void LearnsWhatTheCpuLearns(const TinyRun& twin, int kinks = 0, double growth = 1) {
  TinyRun run = twin;
  const DType dtype = run.options.executor.mixed_precision.param_dtype;
  run.device = DeviceType::kCpu;
  const TinyResult cpu = Train(run);
  const TinyResult cuda = Train(twin);
  ASSERT_EQ(cuda.losses.size(), cpu.losses.size());
  // Roundings of one step are random and many, those of earlier steps come through the weights.
  const double rounding = Rounding(dtype);
  for (size_t s = 0; s < cpu.losses.size(); ++s) {
    const double steps = static_cast<double>(s + 1);
    EXPECT_NEAR(cuda.losses[s], cpu.losses[s], 4 * steps * rounding * cpu.losses[s]) << s;
    EXPECT_NEAR(cuda.grad_norms[s], cpu.grad_norms[s], 32 * steps * rounding * cpu.grad_norms[s])
        << s;
  }
  EXPECT_LT(cuda.losses.back(), cuda.losses.front());
  EXPECT_NEAR(cuda.eval_loss, cpu.eval_loss, 40 * rounding * cpu.eval_loss);
  // A share of the change by all steps.
  const double off = growth * std::max(64 * rounding, std::sqrt(2.0 * kinks * 4 * rounding));
  for (const auto& [name, want] : cpu.parameters) {
    const double difference = Norm(Minus(cuda.parameters.at(name), want));
    const double update = Norm(Minus(cpu.initial.at(name), want));
    // And fp32 masters round at every step.
    EXPECT_LE(difference, off * update + run.steps * 0x1p-24 * Norm(want)) << name;
  }
  for (const auto& [name, want] : cpu.state) {
    if (!name.starts_with("rows/")) continue;  // Squares of the gradients of tables' rows.
    EXPECT_LE(Norm(Minus(cuda.state.at(name), want)), 2 * off * Norm(want)) << name;
  }
}

TEST_P(CudaTwinTest, LearnsWhatTheCpuLearns) {
  const auto& [qwen, dtype, world] = GetParam();
  TinyRun run = Twin(qwen, dtype, world);
  run.device = DeviceType::kCuda;
  LearnsWhatTheCpuLearns(run);
}

// An encoder and a decoder, of both versions of T5: biases by distance, lengths, other keys than
// queries, and dropout in each place.
TEST(CudaTwin, LearnsFromPairs) {
  for (const auto& [gated, dtype] :
       {std::pair(false, DType::kFloat32), {true, DType::kBFloat16}, {false, DType::kFloat16}}) {
    if (std::size(kWorlds) == 1 && !gated) continue;
    T5Config config{.hidden_size = 32,
                    .intermediate_size = 48,
                    .num_hidden_layers = 2,
                    .num_attention_heads = 2,
                    .head_dim = 24,
                    .vocab_size = 251,
                    .relative_attention_num_buckets = 8,
                    .relative_attention_max_distance = 20,
                    .gated_mlp = gated,
                    .tie_word_embeddings = !gated,
                    .dropout_rate = 0.1,
                    .target_length = 20};
    TinyRun run = Twin(/*qwen=*/false, dtype, /*world=*/2);
    run.model = [config] { return MakeModel(config); };
    run.rows = std::make_shared<SyntheticRows>(  // The same two samples at every step.
        run.model()->Inputs(run.options.executor.sample_length),
        std::vector<SyntheticRows::Source>{{.seed = 5, .rows = 2}}, /*seed=*/0);
    if (dtype == DType::kFloat16) {
      run.options.executor.mixed_precision.keep_fp32 = {"*.wo.weight"};
    }
    run.device = DeviceType::kCuda;
    const bool in_16_bits = dtype != DType::kFloat32;
    LearnsWhatTheCpuLearns(run, /*kinks=*/in_16_bits && !gated ? 4 : 0);
  }
}

// Images, with dropout in each place; a DeepViT, whose heads are mixed.
TEST(CudaTwin, LearnsFromImages) {
  for (const auto& [deep, dtype] :
       {std::pair(false, DType::kFloat32), {true, DType::kBFloat16}, {false, DType::kFloat16}}) {
    if (std::size(kWorlds) == 1 && !deep) continue;
    VitConfig config{.image_size = 12,
                     .patch_size = 4,
                     .num_labels = 10,
                     .hidden_size = 32,
                     .intermediate_size = 48,
                     .num_hidden_layers = 2,
                     .num_attention_heads = 2,
                     .head_dim = 16,
                     .qkv_bias = false,  // The gradient of k's is rounding alone.
                     .hidden_dropout_prob = 0.1,
                     .attention_dropout = 0.1};
    if (deep) {
      config.reattention = Reattention::kLayerNorm;
      config.layer_norm_epsilon = 1e-5;
    }
    TinyRun run = Twin(/*qwen=*/false, dtype, /*world=*/2);
    run.model = [config] { return MakeModel(config); };
    run.rows = std::make_shared<SyntheticRows>(  // The same two samples at every step.
        run.model()->Inputs(0), std::vector<SyntheticRows::Source>{{.seed = 5, .rows = 2}},
        /*seed=*/0);
    run.options.executor.mixed_precision.scaler.init_scale = 1024;  // Nothing overflows.
    run.device = DeviceType::kCuda;
    LearnsWhatTheCpuLearns(run);
  }
}

// Convolutions and batch norms over both ranks' images, 32 channels wide. By our own kernels and
// by cuDNN's, all of whose memory was planned.
TEST(CudaTwin, LearnsFromConvolutions) {
  struct Case {
    bool y;
    DType dtype;
    bool cudnn;
  };
  for (const auto& [y, dtype, cudnn] : {Case{true, DType::kFloat32, true},
                                        {true, DType::kBFloat16, false},
                                        {true, DType::kBFloat16, true},
                                        {false, DType::kFloat16, false},
                                        {false, DType::kFloat16, true}}) {
    if (std::size(kWorlds) == 1 && dtype != DType::kBFloat16) continue;
    SCOPED_TRACE(std::string(Name(dtype)) + (cudnn ? " by cuDNN" : ""));
    const RegNetConfig config{.image_size = 12,
                              .num_labels = 10,
                              .embedding_size = 16,
                              .hidden_sizes = {32},
                              .depths = {2},
                              .groups_width = 16,
                              .squeeze_excitation = y};
    TinyRun run = Twin(/*qwen=*/false, dtype, /*world=*/2);
    run.model = [config] { return MakeModel(config); };
    run.rows = std::make_shared<SyntheticRows>(  // The same four samples at every step.
        run.model()->Inputs(0), std::vector<SyntheticRows::Source>{{.seed = 5, .rows = 4}},
        /*seed=*/0);
    run.options.global_batch_size = 4;
    run.options.executor.micro_batch_size = 2;
    run.options.executor.batch_norm_sync = true;
    run.options.executor.mixed_precision.scaler.init_scale = 1024;  // Nothing overflows.
    run.steps = 3;
    run.options.executor.convolution.cudnn = cudnn;
    run.device = DeviceType::kCuda;
    LearnsWhatTheCpuLearns(run, /*kinks=*/dtype == DType::kFloat32 ? 0 : 8);
  }
}

// Numbers and ids, with embedding tables outside FSDP. Rows in bf16 are rounded by the same draws.
TEST(CudaTwin, LearnsFromClicks) {
  for (const DType dtype : kDTypes) {
    const bool bf16 = dtype == DType::kBFloat16;
    const DhenConfig config{.dense_columns = 5,
                            .table_rows = {50, 7, 20},
                            .table_bags = {1, 3, 2},
                            .table_width = 32,
                            .table_dtype = bf16 ? TableDType::kBFloat16 : TableDType::kFloat32,
                            .dense_vectors = 2,
                            .num_vectors = 6,
                            .num_hidden_layers = 2,
                            .num_attention_heads = 2,
                            .cross_rank = 8,
                            .intermediate_size = 48};
    TinyRun run = Twin(/*qwen=*/false, dtype, /*world=*/2);
    run.model = [config] { return MakeModel(config); };
    run.rows = std::make_shared<ChangedRows>(  // The same four samples at every step.
        run.model()->Inputs(0),
        [](int64_t sample, int64_t row, const Batch& batch) {
          batch.inputs[kClick].As<float>()[row] = static_cast<float>(sample % 2);
        },
        SyntheticRows::Source{.seed = 5, .rows = 4});
    run.options.global_batch_size = 4;
    run.options.executor.micro_batch_size = 2;
    // Layers' norms take these biases away again: their gradients are rounding alone.
    run.options.optimizer.groups = {{"*.linear.bias", std::nullopt, 1, /*frozen=*/true}};
    run.options.executor.mixed_precision.scaler.init_scale = 1024;  // Nothing overflows.
    run.steps = 3;
    run.device = DeviceType::kCuda;
    // ReLUs of the numbers, of both layers' convolutions and of the head.
    LearnsWhatTheCpuLearns(run, /*kinks=*/dtype == DType::kFloat32 ? 0 : 4);
  }
}

// Products by a library, all of whose shapes were timed before the first step.
TEST(CudaTwin, LearnsWithTheLibrary) {
  for (const bool qwen : {false, true}) {
    if (qwen && std::size(kWorlds) == 1) continue;
    TinyRun run = Twin(qwen, qwen ? DType::kBFloat16 : DType::kFloat32, /*world=*/2);
    run.device = DeviceType::kCuda;
    run.library = qwen ? TinyRun::Library::kDeterministic : TinyRun::Library::kFast;
    if (qwen) run.lora = LoraOptions{.rank = 8, .base = LoraBase::kNf4};
    LearnsWhatTheCpuLearns(run);
  }
}

// Updates by the host's kernels, of what a GPU's streams bring there, and back.
TEST(CudaTwin, LearnsWithOffload) {
  for (const auto& [params, spill] : {std::pair(false, false), {true, false}, {false, true}}) {
    TinyRun run = Twin(/*qwen=*/false, DType::kBFloat16, params ? 1 : 2);
    run.device = DeviceType::kCuda;
    ExecutorOptions& o = run.options.executor;
    o.cpu_offload = {.params = params, .optimizer = true};
    if (!params) o.cpu_offload.optimizer_share = 0.5;
    if (spill) o.cpu_offload.spill = ::testing::TempDir();
    o.spill_part = 2048;
    o.activation_offload = spill ? ActivationOffload::kSpill : ActivationOffload::kHost;
    run.options.global_batch_size = 4;  // Two micro-batches a rank, or four.
    run.config.num_hidden_layers = 3;   // Activations of the first two leave.
    LearnsWhatTheCpuLearns(run);
  }
}

// Matrices that ranks own, over the host's memory and over NCCL. The iteration makes a difference
// of the least singular values as much larger as its first coefficient says, at every step of it.
TEST(CudaTwin, LearnsWithMuon) {
  TinyRun run = Twin(/*qwen=*/false, DType::kFloat32, /*world=*/2);
  run.config.hidden_size = 48;
  run.config.intermediate_size = 80;
  run.options.optimizer.kind = OptimizerKind::kMuon;
  // AdamW would divide the gradient of the keys' biases, which is rounding alone, by its size.
  run.options.optimizer.groups = {{"*.c_attn.bias", std::nullopt, 1, /*frozen=*/true}};
  run.options.executor.whole = WholeRuleOf(run.options.optimizer);
  run.options.lr.lr = 0.01;
  run.steps = 2;
  run.device = DeviceType::kCuda;
  const MuonOptions& muon = run.options.optimizer.muon;
  const double times = std::pow(muon.ns_coefficients[0], muon.ns_steps);
  LearnsWhatTheCpuLearns(run, /*kinks=*/0, times);
  run.options.executor.cpu_offload.optimizer = true;
  LearnsWhatTheCpuLearns(run, /*kinks=*/0, times);
  run.options.executor.cpu_offload.optimizer = false;
  const TinyResult host = Train(run);
  ResetEmulatedGpus({.count = run.world});
  run.nccl = TinyRun::Nccl::kDeterministic;
  EXPECT_EQ(FirstDifference(Train(run), host), "");
  ResetEmulatedGpus();
}

// On a GPU events pass when they do: neither who waits nor where memory comes from is in a bit.
TEST(CudaTwin, ThePapersRuntimeHasTheSameBits) {
  TinyRun run = Twin(/*qwen=*/false, DType::kBFloat16, /*world=*/2);
  run.config.tie_word_embeddings = false;
  run.options.global_batch_size = 4;  // Two micro-batches.
  run.device = DeviceType::kCuda;
  run.steps = 3;
  ExecutorOptions& o = run.options.executor;
  o.max_norm = 0;
  TinyResult plain = Train(run);
  o.limiter = FsdpOptions::Limiter::kHost;
  EXPECT_EQ(FirstDifference(Train(run), plain), "") << "host's limiter, slots";
  o.buffers = FsdpOptions::Buffers::kCaching;
  o.communicators = 1;
  o.mixed_precision.cast = FsdpOptions::MixedPrecision::CastIn::kGather;
  EXPECT_EQ(FirstDifference(Train(run), plain), "") << "caching";
  o.auto_wrap.outside = WrapPolicy::Outside::kRoot;
  const TinyResult root = Train(run);
  plain.grad_norms = root.grad_norms;  // Squares are added unit by unit.
  EXPECT_EQ(FirstDifference(root, plain), "") << "outside: root";
}

// In one hop, in two and between copies, over the host's memory and over NCCL, whose sums are ours.
TEST(CudaTwinOverNccl, QuantizedReductionsAreTheModel) {
  using Reduce = FsdpOptions::Quantize::Reduce;
  ResetEmulatedGpus({.count = 4});
  for (const TinyRun::Nccl nccl : {TinyRun::Nccl::kNo, TinyRun::Nccl::kNative}) {
    if (!AllCases() && (nccl == TinyRun::Nccl::kNo) == (Part(2) == 0)) continue;
    ReduceSetting s{.world = 3, .device = DeviceType::kCuda, .nccl = nccl};
    ExpectReduceModel(s);
    s = {.world = 4,
         .inside = 2,
         .reduce = Reduce::kInt4,
         .params = DType::kBFloat16,
         .micro_batches = 2,
         .device = DeviceType::kCuda,
         .nccl = nccl};
    ExpectReduceModel(s);
    s.inside = 0;
    s.copies = 2;
    ExpectReduceModel(s);
  }
  ResetEmulatedGpus();
}

// Ranks with a GPU each. In rank order NCCL's sums have the bits of the host's; of its own they
// lead to the same losses, to roundings on the wire.
TEST(CudaTwinOverNccl, LearnsWhatRanksOnOneGpuLearn) {
  for (const int world : kWorlds) {
    if (world == 1) continue;
    ResetEmulatedGpus({.count = world});
    for (const DType wire : kDTypes) {
      if (wire == DType::kFloat16 || IsLeftOut(/*qwen=*/false, wire, world)) continue;
      TinyRun run = Twin(/*qwen=*/false, DType::kBFloat16, world);
      run.options.executor.mixed_precision.reduce_dtype = wire;
      run.device = DeviceType::kCuda;
      run.steps = 4;
      const TinyResult host = Train(run);
      run.nccl = TinyRun::Nccl::kDeterministic;
      EXPECT_EQ(FirstDifference(Train(run), host), "") << world << " ranks, " << Name(wire);
      run.nccl = TinyRun::Nccl::kNative;
      const TinyResult native = Train(run);
      for (size_t s = 0; s < host.losses.size(); ++s) {
        EXPECT_NEAR(native.losses[s], host.losses[s],
                    16 * Rounding(DType::kBFloat16) * host.losses[s])
            << s;
      }
    }
  }
  ResetEmulatedGpus();
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  const auto& [qwen, dtype, world] = info.param;
  return std::string(qwen ? "qwen2" : "gpt2") + "_" + std::string(Name(dtype)) + "_world" +
         std::to_string(world);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const bool qwen : {false, true}) {
    for (const DType dtype : kDTypes) {
      for (const int world : kWorlds) {
        if (!IsLeftOut(qwen, dtype, world)) cases.emplace_back(qwen, dtype, world);
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Runs, CudaTwinTest, ::testing::ValuesIn(Cases()), CaseName);

}  // namespace
}  // namespace fsdp::testing
