// A small model trained by ranks that are threads or processes: the whole path from
// schedule to bits, in milliseconds.
#ifndef FSDP_TRAIN_TESTS_TESTING_TINY_RUN_H_
#define FSDP_TRAIN_TESTS_TESTING_TINY_RUN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/family.h"
#include "models/gpt2/config.h"
#include "models/llama/config.h"
#include "models/moe/config.h"
#include "tests/trainer/comm/ranks.h"
#include "trainer/comm/traffic.h"
#include "trainer/data/row_source.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/executor_callbacks.h"
#include "trainer/nn/lora_options.h"
#include "trainer/nn/parameter.h"

namespace fsdp {
class Model;
}  // namespace fsdp

namespace fsdp::testing {

struct TinyRun {
  Gpt2Config config = TinyConfig();
  std::optional<LlamaConfig> llama = {};  // In place of `config`.
  std::optional<MoeConfig> moe = {};      // The same.
  std::optional<LoraOptions> lora = {};
  // Instead of both: another model, and the rows that it is fed, every one of which counts.
  std::function<std::shared_ptr<Model>()> model = nullptr;
  std::shared_ptr<const RowSource> rows = nullptr;
  SessionOptions options = TinyOptions();  // optimizer.groups: what they freeze is frozen.
  int world = 1;
  std::vector<int> ranks_by_position = {};  // As Mesh takes them.
  int steps = 3;
  uint64_t seed = 7;
  RunRanks ranks = RunThreadRanks;  // Or RunProcessRanks.
  bool check = true;                // Under the stream checker.
  bool park = false;                // Streams start parked: see CpuDevice::Park.
  // The run's device: CreateDevice() makes it, for kCuda the one that the test is linked with.
  DeviceType device = DeviceType::kCpu;
  // Products by cuBLASLt, which the test is linked with, timed before the first step. A rank fails
  // if the run multiplies a shape that was not timed, or does not multiply one that was.
  enum class Library { kNone, kFast, kDeterministic } library = Library::kNone;
  // On kCuda: rank r has GPU r, and NCCL connects them. Otherwise all have GPU 0, and their tensors
  // go through pinned memory.
  enum class Nccl { kNo, kNative, kDeterministic };
  Nccl nccl = Nccl::kNo;

  // The numbers that the run starts from and is fed; random where null. Called on several threads.
  using Initial = std::function<void(const Parameter&, int64_t begin, std::span<float> values)>;
  Initial initial;
  FillRows initial_rows;                 // The same of embedding tables; random where null.
  FillBuffer initial_buffers = nullptr;  // The same of buffers; their own where null.
  // Sequence `sample` of step `step` (from 1): tokens [seq_len + 1], weights [seq_len] of targets.
  using Sample = std::function<void(int64_t step, int64_t sample, std::span<int32_t> tokens,
                                    std::span<float> weights)>;
  Sample sample;
  // Tokens of a sample, padding excepted, where the model asks. Null: all.
  std::function<int64_t(int64_t step, int64_t sample)> length = nullptr;
  // Where the documents of a sample begin: positions [seq_len]. Null: one document a row.
  using Positions = std::function<void(int64_t step, int64_t sample, std::span<int32_t> positions)>;
  Positions positions = nullptr;

  // Threads alone: the bytes that each rank has sent in each training step, from 1, and in the
  // evaluations after the last one: step 0. Called on the ranks' threads.
  using OnTraffic = std::function<void(int rank, int64_t step, const TrafficBytes&)>;
  OnTraffic on_traffic = nullptr;

  // The rounds that each rank counts, called as on_traffic.
  std::function<void(int rank, int64_t step, int64_t rounds)> on_table_rounds = nullptr;

  bool mean = true;  // False: gradients are reported as they are summed.

  int64_t eval_step = 1000;  // After the last step, the loss of this step's samples is measured.
  // (Sample of step 1, column) of the logits to return, computed before the first step.
  std::vector<std::pair<int64_t, int64_t>> logits = {};

  ModelShape shape() const {
    if (moe) return *moe;
    return llama ? ModelShape(*llama) : ModelShape(config);
  }

  static Gpt2Config TinyConfig();  // 3 blocks, odd sizes.
  static LlamaConfig TinyLlama();  // 2 blocks, 6 heads for 3, norms of q and k, biases, yarn.
  // 3 blocks, the first dense; 5 experts, 2 a token, a shared one with a gate; all heads normed.
  static MoeConfig TinyMoe();
  static SessionOptions TinyOptions();  // SGD, a global batch of 6 x 11 tokens.
};

using Tensors = std::map<std::string, std::vector<float>>;

struct TinyResult {
  std::vector<float> losses, grad_norms;  // By step.
  std::vector<float> loss_scales;         // By step; empty where none are in use.
  std::vector<float> coded;               // Bits of the hash of coded weights.
  float eval_loss = 0;
  float eval_second_sum = 0;  // Sum of the model's eval_metric() over the evaluation's samples.
  std::vector<float> logits;  // [logits.size(), vocab].
  // Whole, by the names of slices:
  Tensors initial;     // Parameters before the first step, and embedding tables, as the next.
  Tensors parameters;  // After the last step.
  Tensors gradients;   // Last step's, mean over its targets.
  Tensors state;       // Optimizer's, after the last step: "m/<parameter>", ...; "rows/<table>".
  Tensors buffers;     // Model's, after the evaluation behind the last step.
};

// Bytes that the plan has for activations: above all those that a micro-batch keeps.
int64_t PlannedActivations(const TinyRun& run);

// The first bits that differ, in words; empty where none do. Ignores `initial`.
std::string FirstDifference(const TinyResult& a, const TinyResult& b);

// The samples of a run that names no others.
TinyRun::Sample SampleOf(const TinyRun& run);

// Throws if a rank fails, if ranks hold different bits of the same number, if no rank has an
// element of a parameter, or if padding is not zero.
TinyResult Train(const TinyRun& run);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_TINY_RUN_H_
