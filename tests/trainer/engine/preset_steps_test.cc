// No operation of a published model's step changes unless a commit says which and why: what a step
// enqueues (streams, names, bytes of operands, costs, in that order) and what is planned for it, as
// preset_steps.txt holds them, whole lists as a hash. After such a change
//
//   bazel run //tests/trainer/engine:tests -- --gtest_filter='PresetStepsTest.*'
//
// with PRESET_STEPS_WRITE=$PWD/tests/trainer/engine/preset_steps.txt puts what is now in place of
// what was. With PRESET_STEPS_LIST=DIRECTORY it also writes every list there, one file each, for
// diff to compare with those of another build.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "models/shape.h"
#include "trainer/core/file_prefix.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/engine/step_operations.h"
#include "trainer/nn/model.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

struct Setting {
  const char* name;
  DeviceType kernels;
  int world;
  void (*change)(SessionOptions&);
};

// Each kind of kernels, of recomputation and of place; and what evaluations and samples plan.
const Setting kSettings[] = {
    {"cpu-fp32", DeviceType::kCpu, 1,
     [](SessionOptions& o) { o.executor.sharding_strategy = Strategy::kNoShard; }},
    {"cuda-bf16-recomputed", DeviceType::kCuda, 8,
     [](SessionOptions& o) {
       o.executor.mixed_precision.param_dtype = DType::kBFloat16;
       o.executor.recompute = Recompute::kFull;
       o.executor.attention = AttentionBackend::kCudnn;
       o.executor.documents = false;
       o.optimizer.ema = 0.999;
     }},
    {"cuda-bf16-offloaded", DeviceType::kCuda, 16,
     [](SessionOptions& o) {
       o.executor.mixed_precision.param_dtype = DType::kBFloat16;
       o.executor.mixed_precision.reduce_dtype = DType::kBFloat16;
       o.executor.sharding_strategy = Strategy::kHybridShard;
       o.executor.shard_size = 8;
       o.executor.recompute = Recompute::kSelective;
       o.executor.activation_offload = ActivationOffload::kHost;
       o.executor.cpu_offload.optimizer = o.executor.cpu_offload.params = true;
     }},
};

SessionOptions OptionsOf(const Setting& setting, const ModelShape& shape) {
  SessionOptions options;
  options.lr = {LrShape::kConstant, 1e-3, 0, 100, 0.1};
  ExecutorOptions& e = options.executor;
  e.micro_batch_size = 2;
  e.micro_batches = 2;
  const auto decoder = shape.family().Decoder(shape);
  constexpr int64_t kLength = 512;  // Where a sample has a length, and any will do.
  e.sample_length = decoder ? std::min<int64_t>(decoder->max_positions, 2048)
                    : MakeModel(shape)->Inputs(kLength).targets == kLength ? kLength
                                                                           : 1;
  e.max_norm = 1;
  options.global_batch_size = int64_t{4} * setting.world;
  options.generate = decoder.has_value();
  options.snapshot = true;
  setting.change(options);
  return options;
}

void Write(std::ostream& out, const KernelCost& kernel) {
  out << " " << static_cast<int>(kernel.kind) << " " << kernel.cost.flops << " "
      << kernel.cost.bytes_read << " " << kernel.cost.bytes_written << " " << kernel.cost.link_bytes
      << " " << kernel.cost.link_messages << " " << kernel.gpu.launches << " "
      << kernel.gpu.extra_bytes;
  if (kernel.kind != KernelKind::kProduct) return;
  const Product& p = kernel.product;
  out << " " << p.name << " " << p.m << "x" << p.n << "x" << p.k << " " << p.a_transposed
      << p.b_transposed << p.adds << p.bias << " " << p.count << " " << Name(p.dtype) << " "
      << Name(p.result) << " " << static_cast<int>(p.activation);
}

void Write(std::ostream& out, const Operation& operation, StepResource resource) {
  out << static_cast<int>(resource) << " " << operation.name << " reads";
  for (const Range& range : operation.reads) out << " " << range.bytes;
  out << " writes";
  for (const Range& range : operation.writes) out << " " << range.bytes;
  for (const KernelCost& kernel : operation.costs) Write(out, kernel);
  out << "\n";
}

// A line of the file, and the list behind it.
std::string LineOf(const ModelPreset& preset, const Setting& setting) {
  const std::shared_ptr<Model> model = MakeModel(preset.shape);
  const SessionOptions options = OptionsOf(setting, preset.shape);
  const int64_t length = options.executor.sample_length;
  std::ostringstream list;
  list.precision(17);
  int64_t operations = 0;
  ObserveStep(*model, options, setting.world, setting.kernels,
              [&](const Operation& operation, StepResource resource) {
                ++operations;
                Write(list, operation, resource);
              });
  PrefixHash hash;
  hash.Update(list.str());
  std::ostringstream line;
  line.precision(17);
  line << preset.name << " " << setting.name << " parameters " << NumParameters(preset.shape)
       << " flops_per_token " << FlopsPerSample(*model, length) / static_cast<double>(length)
       << " operations " << operations << " hash " << std::hex << hash.Taken().hash << std::dec;
  const MemoryPlan plan =
      PlanMemory(*model, options, setting.world, /*traffic=*/nullptr, setting.kernels);
  constexpr std::array<const char*, kNumMemoryPlaces> kPlaces = {"device", "pinned", "host",
                                                                 "disk"};
  constexpr std::array<const char*, kNumMemoryKinds> kKinds = {
      "parameters", "gradients", "optimizer", "unsharded", "secondary", "activations", "snapshot"};
  for (int place = 0; place < kNumMemoryPlaces; ++place) {
    if (plan.arenas[place] == 0) continue;
    line << " " << kPlaces[place] << " " << plan.arenas[place];
    for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
      if (const int64_t bytes = plan.kinds[place][kind]; bytes > 0) {
        line << " " << kKinds[kind] << " " << bytes;
      }
    }
  }
  if (const char* directory = std::getenv("PRESET_STEPS_LIST")) {
    std::ofstream(std::string(directory) + "/" + std::string(preset.name) + "." + setting.name)
        << list.str();
  }
  return line.str();
}

std::vector<std::string> Recorded() {
  std::ifstream file("tests/trainer/engine/preset_steps.txt");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(PresetStepsTest, AreWhatTheyWere) {
  std::vector<std::string> lines;
  for (const ModelPreset& preset : ModelPresets()) {
    for (const Setting& setting : kSettings) lines.push_back(LineOf(preset, setting));
  }
  if (const char* path = std::getenv("PRESET_STEPS_WRITE")) {
    std::ofstream file(path);
    for (const std::string& line : lines) file << line << "\n";
    GTEST_SKIP() << "written to " << path;
  }
  EXPECT_EQ(lines, Recorded());
}

}  // namespace
}  // namespace fsdp
