#include "trainer/generate/generator.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <utility>

#include "models/make_model.h"
#include "models/shape_json.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/read_file.h"
#include "trainer/core/units.h"
#include "trainer/data/check_row.h"
#include "trainer/data/token_batch.h"
#include "trainer/engine/host_memory.h"
#include "trainer/ops/elementwise.h"
#include "trainer/recipe/load.h"
#include "trainer/runtime/device_factory.h"
#include "trainer/runtime/gpus.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

void FreezeAll(const Model& model) {
  for (const ModelSegment& segment : model.segments()) {
    for (Parameter* p : segment.parameters) p->Freeze();
  }
}

}  // namespace

StoredModel OpenStoredModel(const std::string& path) {
  StoredModel stored;
  WeightSource weights;
  if (PathExists(path + "/config.json") && !PathExists(path + "/manifest.json")) {
    stored.directory = path;
    stored.shape = ReadInitialShape(path);
    stored.tokenizer = InitialTokenizer(path);
    stored.eos = ReadHfEos(path);
    weights = OpenInitialWeights(path);
  } else {
    auto reader = std::make_unique<CheckpointReader>(HoldCheckpoint(path));
    const CheckpointMeta& meta = reader->manifest().meta;
    stored.directory = reader->directory();
    stored.shape = ShapeFromJson(meta.config, stored.directory + "/manifest.json, config");
    if (!meta.recipe.empty()) {  // Otherwise it was imported.
      stored.tokenizer = TokenizerOfRun(ParseRecipe({{stored.directory, meta.recipe}}));
      if (stored.tokenizer.eot) stored.eos = {*stored.tokenizer.eot};
    }
    weights = OpenInitialWeights(std::move(reader));
  }
  stored.model = MakeModel(stored.shape);
  if (!stored.shape.family().Decoder(stored.shape)) {
    throw CheckpointError(stored.directory + ": nothing is generated from a `" +
                          std::string(FamilyOf(stored.shape)) + "`");
  }
  FreezeAll(*stored.model);
  stored.weights = RequireFinite(std::move(weights), stored.directory, "generated");
  return stored;
}

Generator::Generator(StoredModel model, const GeneratorOptions& options)
    : options_(options),
      model_(std::move(model.model)),
      device_(CreateDevice(options.device.type, {.gpu = options.device.gpu})),
      allocator_(*device_) {
  if (options.rows < 1 || options.capacity < 1 ||
      options.capacity > model_->autoregressive()->max_positions()) {
    throw std::invalid_argument("[Generator] " + std::to_string(options.rows) + " rows of " +
                                std::to_string(options.capacity) + " tokens, want 1 to " +
                                std::to_string(model_->autoregressive()->max_positions()));
  }
  const DecoderShape c = DecoderOf(model.shape);
  const Shape layer{options.rows, options.capacity, c.num_key_value_heads, c.head_dim};
  const int64_t cache_bytes = 2 * c.num_layers * layer.NumElements() * SizeOf(DType::kFloat32);
  const int64_t weight_bytes = NumParameters(model.shape) * SizeOf(DType::kFloat32);
  std::optional<MemoryRoom> available;
  if (options.device.type == DeviceType::kCuda) {
    available = {MemoryOf(options.device.gpu).free, "memory of " + options.device.name};
  } else {
    available = AvailableMemory(MemoryLimits(), 1, 0);
  }
  if (available && weight_bytes + cache_bytes > available->bytes) {
    throw MemoryError("does not fit: " + HumanBytes(weight_bytes) + " of weights and " +
                      HumanBytes(cache_bytes) + " of keys and values for " +
                      std::to_string(options.rows) + " x " + std::to_string(options.capacity) +
                      " tokens, and " + HumanBytes(available->bytes) + " are available (" +
                      available->limit + ")");
  }
  ExecutorOptions executor;
  executor.sharding_strategy = Strategy::kNoShard;
  executor.auto_wrap.policy = AutoWrap::kNone;
  executor.micro_batch_size = options.rows;
  executor.sample_length = options.capacity;
  executor.threads = options.threads;
  executor_ = std::make_unique<Executor>(*device_, allocator_, *model_, executor, alone_);
  logits_ = executor_->NewBuffer(options.rows * vocab_size(), DType::kFloat32);
  host_logits_ = executor_->NewBuffer(options.rows * vocab_size(), DType::kFloat32,
                                      {MemoryKind::kActivations, MemoryPlace::kPinned});
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const View k = executor_->NewBuffer(layer.NumElements(), DType::kFloat32);
    const View v = executor_->NewBuffer(layer.NumElements(), DType::kFloat32);
    cache_.push_back({k.Reshape(layer), v.Reshape(layer)});
  }
  executor_->Initialize(model.weights.parameters, model.weights.buffers, model.weights.rows);
  executor_->Synchronize();
}

KvCache Generator::CacheOf(int64_t first_row, int64_t rows) const {
  const auto part = [&](const View& all) {
    const Shape& s = all.shape;
    const int64_t row = s[1] * s[2] * s[3];
    return all.Reshape(Shape{all.NumElements()})
        .Slice(first_row * row, rows * row)
        .Reshape(Shape{rows, s[1], s[2], s[3]});
  };
  std::vector<KvCache::Layer> layers;
  for (const KvCache::Layer& layer : cache_) layers.push_back({part(layer.k), part(layer.v)});
  return {options_.capacity, std::move(layers)};
}

std::span<const float> Generator::Run(int64_t first_row, int64_t rows,
                                      std::span<const int32_t> tokens,
                                      std::span<const int32_t> positions) {
  const auto n = static_cast<int64_t>(tokens.size()) / rows;
  KvCache cache = CacheOf(first_row, rows);
  const View logits = logits_.Slice(0, rows * vocab_size());
  const View host = host_logits_.Slice(0, rows * vocab_size());
  Executor::Step step;
  step.mode = Mode::kEval;
  step.load = [&](int, const Batch& whole) {
    const TokenBatch batch(whole);
    std::copy(tokens.begin(), tokens.end(), batch.tokens.As<int32_t>());
    std::copy(positions.begin(), positions.end(), batch.positions.As<int32_t>());
    const RowLimits limits{static_cast<int32_t>(vocab_size()), options_.capacity};
    for (int64_t row = 0; row < rows; ++row) {
      const auto at = static_cast<size_t>(row * n), count = static_cast<size_t>(n);
      CheckRow({.tokens = tokens.subspan(at, count), .positions = positions.subspan(at, count)},
               limits, [&](int64_t token) {
                 return TokenPlace{"text " + std::to_string(first_row + row) + ", token " +
                                   std::to_string(token)};
               });
    }
  };
  step.forward = [&](Tape& tape, const Batch& batch) {
    tape.Use(&cache);
    const auto part = [&](const View& all) {
      return all.Reshape(Shape{all.NumElements()}).Slice(0, rows * n).Reshape(Shape{rows, n});
    };
    Batch used;
    for (const View& input : batch.inputs) used.inputs.push_back(part(input));
    used.sample_keys = batch.sample_keys;
    model_->autoregressive()->Logits(tape, used, n - 1, logits);
    Copy(tape.stream(), logits, host);
  };
  executor_->Run(step);
  executor_->Result(executor_->steps() - 1);
  const std::span<const float> out{host.As<float>(), static_cast<size_t>(host.NumElements())};
  if (!std::all_of(out.begin(), out.end(), [](float logit) { return std::isfinite(logit); })) {
    throw Error(ExitCode::kNotFinite,
                "the model's logits are not finite, though its weights are: they overflow");
  }
  return out;
}

std::span<const float> Generator::Start(int64_t row, std::span<const int32_t> prompt) {
  FSDP_CHECK(row >= 0 && row < options_.rows) << row;
  FSDP_CHECK(!prompt.empty() && static_cast<int64_t>(prompt.size()) <= options_.capacity);
  std::vector<int32_t> positions(prompt.size());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i);
  return Run(row, 1, prompt, positions);
}

std::span<const float> Generator::Next(std::span<const int32_t> tokens,
                                       std::span<const int32_t> positions) {
  FSDP_CHECK_EQ(static_cast<int64_t>(tokens.size()), options_.rows);
  FSDP_CHECK_EQ(positions.size(), tokens.size());
  return Run(0, options_.rows, tokens, positions);
}

}  // namespace fsdp
