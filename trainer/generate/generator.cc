#include "trainer/generate/generator.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "models/shape.h"
#include "trainer/autograd/tape.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/read_file.h"
#include "trainer/core/units.h"
#include "trainer/data/check_row.h"
#include "trainer/data/pairs/pair_batch.h"
#include "trainer/data/pairs/span_corruption.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/engine/host_memory.h"
#include "trainer/fsdp/executor.h"
#include "trainer/nn/model.h"
#include "trainer/ops/elementwise.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_export.h"
#include "trainer/weights/hf_hints.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

void FreezeAll(const Model& model) {
  for (const ModelSegment& segment : model.segments()) {
    for (Parameter* p : segment.parameters) p->Freeze();
  }
}

// The decoder that makes tokens one after the other; empty: there is none.
std::optional<DecoderShape> DecoderToRun(const ModelShape& shape) {
  const std::optional<DecoderShape> of_target = shape.family().TargetDecoder(shape);
  return of_target ? of_target : shape.family().Decoder(shape);
}

// `rows` rows from `first` on of memory that has all of them.
View RowsOf(const View& all, int64_t first, int64_t rows, int64_t all_rows) {
  const int64_t each = all.shape[0] / all_rows, row = all.NumElements() / all_rows;
  const Shape shape = all.shape.rank() == 2
                          ? Shape{rows * each, all.shape[1]}
                          : Shape{rows * each, all.shape[1], all.shape[2], all.shape[3]};
  return all.Reshape(Shape{all.NumElements()}).Slice(first * row, rows * row).Reshape(shape);
}

// Empty with another tokenizer, which has its sentinels.
std::vector<int32_t> ByteSentinelsOf(const Recipe& recipe, const RunTokenizer& tokenizer,
                                     int64_t vocab) {
  std::vector<int32_t> sentinels;
  const DataRecipe& data = recipe.data;
  if (tokenizer.name != "bytes" || data.objective != DataRecipe::Objective::kSpanCorruption) {
    return sentinels;
  }
  const auto text = LongestText(data.spans(), data.seq_len);
  for (int64_t i = 0; text && i < text->spans; ++i) sentinels.push_back(ByteSentinel(i, vocab));
  return sentinels;
}

// Throws MemoryError where weights and caches will not fit.
void RequireRoom(const GeneratorOptions& options, int64_t weights, int64_t caches) {
  std::optional<MemoryRoom> available;
  if (options.device.type == DeviceType::kCuda) {
    available = {MemoryOf(options.device.gpu).free, "memory of " + options.device.name};
  } else {
    available = AvailableMemory(MemoryLimits(), 1, 0);
  }
  if (!available || weights + caches <= available->bytes) return;
  throw MemoryError("does not fit: " + HumanBytes(weights) + " of weights and " +
                    HumanBytes(caches) + " of keys and values for " + std::to_string(options.rows) +
                    " x " + std::to_string(options.input + options.capacity) + " tokens, and " +
                    HumanBytes(available->bytes) + " are available (" + available->limit + ")");
}

}  // namespace

StoredModel OpenStoredModel(const std::string& path) {
  StoredModel stored;
  WeightSource weights;
  if (IsOfHuggingFace(path)) {
    stored.directory = path;
    stored.shape = ReadInitialShape(path);
    stored.tokenizer = InitialTokenizer(path);
    stored.eos = InitialEos(path);
    stored.notes = InitialNotes(path);
    weights = OpenInitialWeights(path);
  } else {
    RefuseWhatIsNoCheckpoint(path);
    auto reader = std::make_unique<CheckpointReader>(HoldCheckpoint(path));
    const CheckpointMeta& meta = reader->manifest().meta;
    stored.directory = reader->directory();
    stored.shape = ShapeFromJson(meta.config, stored.directory + "/manifest.json, config");
    if (meta.recipe.empty()) {  // It was imported.
      stored.tokenizer = InitialTokenizer(stored.directory);
      stored.eos = InitialEos(stored.directory);
    } else {
      const Recipe recipe = ParseRecipe({{stored.directory, meta.recipe}});
      stored.tokenizer = TokenizerOfRun(recipe);
      if (stored.tokenizer.eot) stored.eos = {*stored.tokenizer.eot};
      if (stored.shape.Find("vocab_size")) {
        stored.own = ByteSentinelsOf(recipe, stored.tokenizer, VocabSize(stored.shape));
      }
      stored.other_ends = EndsOfOrigin(stored.directory, meta);
    }
    weights = OpenInitialWeights(std::move(reader));
  }
  stored.own.insert(stored.own.end(), stored.eos.begin(), stored.eos.end());
  stored.model = MakeModel(stored.shape);
  if (!DecoderToRun(stored.shape)) {
    throw CheckpointError(stored.directory + ": nothing is generated from a `" +
                          std::string(FamilyOf(stored.shape)) + "`");
  }
  FreezeAll(*stored.model);
  stored.weights = RequireFinite(std::move(weights), stored.directory, "generated");
  return stored;
}

Generator::Generator(StoredModel model, const GeneratorOptions& options)
    : options_(options),
      encodes_(model.shape.family().TargetDecoder(model.shape).has_value()),
      model_(std::move(model.model)),
      device_(CreateDevice(options.device.type, {.gpu = options.device.gpu})),
      allocator_(*device_),
      inputs_(static_cast<size_t>(std::max<int64_t>(options.rows, 0))) {
  const int64_t most = model_->autoregressive()->max_positions();
  const bool input_fits = encodes_ ? options.input >= 1 && options.input <= most : !options.input;
  if (options.rows < 1 || options.capacity < 1 || options.capacity > most || !input_fits) {
    throw std::invalid_argument("[Generator] " + std::to_string(options.rows) + " rows of " +
                                std::to_string(options.capacity) + " tokens and inputs of " +
                                std::to_string(options.input) + ", want 1 to " +
                                std::to_string(most) + ", and inputs where they are encoded");
  }
  const DecoderShape decoder = *DecoderToRun(model.shape);
  const int64_t of_token = decoder.num_key_value_heads * decoder.head_dim;
  RequireRoom(
      options_, NumParameters(model.shape) * SizeOf(DType::kFloat32),
      2 * decoder.num_layers * options.rows * capacity() * of_token * SizeOf(DType::kFloat32));
  ExecutorOptions executor;
  executor.sharding_strategy = Strategy::kNoShard;
  executor.auto_wrap.policy = AutoWrap::kNone;
  executor.micro_batch_size = options.rows;
  executor.sample_length = encodes_ ? options.input : options.capacity;
  executor.threads = options.threads;
  executor_ = std::make_unique<Executor>(*device_, allocator_, *model_, executor, alone_);
  logits_ = executor_->NewBuffer(options.rows * vocab_size(), DType::kFloat32);
  host_logits_ = executor_->NewBuffer(options.rows * vocab_size(), DType::kFloat32,
                                      {MemoryKind::kActivations, MemoryPlace::kPinned});
  TakeCaches(decoder);
  executor_->Initialize(model.weights.parameters, model.weights.buffers, model.weights.rows);
  executor_->Synchronize();
}

Generator::~Generator() = default;

int64_t Generator::vocab_size() const { return model_->autoregressive()->outputs(); }

void Generator::TakeCaches(const DecoderShape& decoder) {
  const auto take = [&](const Shape& shape) {
    return executor_->NewBuffer(shape.NumElements(), DType::kFloat32).Reshape(shape);
  };
  const int64_t heads = decoder.num_key_value_heads, head_dim = decoder.head_dim;
  const Shape layer{options_.rows, options_.capacity, heads, head_dim};
  for (int64_t i = 0; i < decoder.num_layers; ++i) {
    const View k = take(layer);
    cache_.push_back({k, take(layer)});
    if (encodes_) encoded_.push_back(take({options_.rows * options_.input, 2 * heads * head_dim}));
  }
}

KvCache Generator::CacheOf(const Fed& fed) const {
  const auto part = [&](const View& all) {
    return RowsOf(all, fed.first_row, fed.rows, options_.rows);
  };
  std::vector<KvCache::Layer> layers;
  for (const KvCache::Layer& layer : cache_) layers.push_back({part(layer.k), part(layer.v)});
  std::vector<KvCache::Encoded> encoded;
  for (const View& kv : encoded_) encoded.push_back({part(kv), /*filled=*/!fed.encodes});
  return {options_.capacity, std::move(layers), std::move(encoded)};
}

// Throws DataError for what lies in no table.
void Generator::Load(const Fed& fed, const Batch& whole) const {
  const auto check = [&](int64_t row, const TokenRow& tokens) {
    const RowLimits limits{static_cast<int32_t>(vocab_size()), options_.capacity};
    CheckRow(tokens, limits, [&](int64_t token) {
      return TokenPlace{"text " + std::to_string(fed.first_row + row) + ", token " +
                        std::to_string(token)};
    });
  };
  const auto n = static_cast<int64_t>(fed.tokens.size()) / fed.rows;
  for (int64_t row = 0; row < fed.rows; ++row) {
    const auto at = static_cast<size_t>(row * n), count = static_cast<size_t>(n);
    check(row, {.tokens = std::span(fed.tokens).subspan(at, count),
                .positions = std::span(fed.positions).subspan(at, count)});
  }
  const auto copy = [&](const TokenBatch& to) {
    std::copy(fed.tokens.begin(), fed.tokens.end(), to.tokens.As<int32_t>());
    std::copy(fed.positions.begin(), fed.positions.end(), to.positions.As<int32_t>());
    for (int64_t row = 0; row < fed.rows; ++row) SetLength(to, row, n);
  };
  if (!encodes_) return copy(TokenBatch(whole));
  copy(PairBatch(whole).decoder);
  for (int64_t row = 0; row < fed.rows; ++row) {
    const std::vector<int32_t>& input = inputs_[static_cast<size_t>(fed.first_row + row)];
    const PairRow to = RowOf(whole, row);
    to.length = static_cast<int32_t>(input.size());
    if (!fed.encodes) continue;
    check(row, {.tokens = input});
    std::fill(std::copy(input.begin(), input.end(), to.input.begin()), to.input.end(), kPadToken);
  }
}

Batch Generator::PartOf(const Fed& fed, const Batch& whole) const {
  const auto n = static_cast<int64_t>(fed.tokens.size()) / fed.rows;
  if (encodes_) return DecoderPart(whole, fed.rows, n);
  Batch used;
  for (const View& all : whole.inputs) {
    const bool by_row = all.shape.rank() == 1;
    const View part = all.Reshape(Shape{all.NumElements()}).Slice(0, fed.rows * (by_row ? 1 : n));
    used.inputs.push_back(by_row ? part : part.Reshape(Shape{fed.rows, n}));
  }
  used.sample_keys = whole.sample_keys;
  return used;
}

std::span<const float> Generator::Run(Fed fed) {
  KvCache cache = CacheOf(fed);
  const View logits = logits_.Slice(0, fed.rows * vocab_size());
  const View host = host_logits_.Slice(0, fed.rows * vocab_size());
  Executor::Step step;
  step.mode = Mode::kEval;
  step.load = [this, fed](int, const Batch& whole) { Load(fed, whole); };  // A copy: stream.h.
  step.forward = [&](Tape& tape, const Batch& batch) {
    tape.Use(&cache);
    const auto n = static_cast<int64_t>(fed.tokens.size()) / fed.rows;
    model_->autoregressive()->Logits(tape, PartOf(fed, batch), n - 1, logits);
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
  const int64_t most = encodes_ ? options_.input : options_.capacity;
  FSDP_CHECK(!prompt.empty() && std::ssize(prompt) <= most);
  if (encodes_) {
    inputs_[static_cast<size_t>(row)].assign(prompt.begin(), prompt.end());
    return Run({row, 1, /*tokens=*/{kPadToken}, /*positions=*/{0}, /*encodes=*/true});
  }
  std::vector<int32_t> positions(prompt.size());
  std::iota(positions.begin(), positions.end(), 0);
  return Run({row, 1, {prompt.begin(), prompt.end()}, std::move(positions)});
}

std::span<const float> Generator::Next(std::span<const int32_t> tokens,
                                       std::span<const int32_t> positions) {
  FSDP_CHECK_EQ(std::ssize(tokens), options_.rows);
  FSDP_CHECK_EQ(positions.size(), tokens.size());
  Fed fed{0, options_.rows, {tokens.begin(), tokens.end()}, {positions.begin(), positions.end()}};
  if (!encodes_) return Run(std::move(fed));
  // The target's token 1 follows a prompt of n tokens: its first is kPadToken. A row whose text has
  // ended with its first token, or that has none in this call, is given position 0.
  for (size_t row = 0; row < fed.positions.size(); ++row) {
    const int64_t behind = std::max<int64_t>(std::ssize(inputs_[row]) - 1, 0);
    fed.positions[row] = static_cast<int32_t>(std::max<int64_t>(fed.positions[row] - behind, 0));
  }
  return Run(std::move(fed));
}

SlidingRows::SlidingRows(LogitsSource& source)
    : source_(source), seen_(static_cast<size_t>(source.rows())) {}

bool SlidingRows::IsFull(size_t row) const {
  return static_cast<int64_t>(seen_[row].size()) > source_.capacity();
}

std::span<const int32_t> SlidingRows::Window(size_t row) const {
  const std::span<const int32_t> all = seen_[row];
  const int64_t length = std::min<int64_t>(std::ssize(seen_[row]), source_.capacity());
  return all.last(static_cast<size_t>(length));
}

std::span<const float> SlidingRows::Start(int64_t row, std::span<const int32_t> prompt) {
  const auto r = static_cast<size_t>(row);
  seen_.at(r).assign(prompt.begin(), prompt.end());
  slid_ |= IsFull(r);
  return source_.Start(row, Window(r));
}

std::span<const float> SlidingRows::Next(std::span<const int32_t> tokens,
                                         std::span<const int32_t> positions) {
  FSDP_CHECK_EQ(tokens.size(), seen_.size());
  std::vector<int32_t> next(tokens.begin(), tokens.end());
  std::vector<int32_t> places(positions.begin(), positions.end());
  std::vector<size_t> anew;  // Rows that have got a token and no place for it.
  bool any = false;          // Rows that have.
  for (size_t r = 0; r < seen_.size(); ++r) {
    std::vector<int32_t>& seen = seen_[r];
    const bool grows = !seen.empty() && positions[r] == std::ssize(seen);
    if (grows) seen.push_back(tokens[r]);
    if (!IsFull(r)) {
      any |= grows;
      continue;
    }
    if (grows) anew.push_back(r);
    next[r] = seen.back();  // The source's own logits of it go unread.
    places[r] = static_cast<int32_t>(source_.capacity()) - 1;
  }
  if (anew.empty()) return source_.Next(next, places);
  slid_ = true;
  const auto vocab = static_cast<size_t>(vocab_size());
  logits_.resize(seen_.size() * vocab);
  if (any) {
    const std::span<const float> of_all = source_.Next(next, places);
    std::copy(of_all.begin(), of_all.end(), logits_.begin());
  }
  for (const size_t r : anew) {
    const std::span<const float> of_row = source_.Start(static_cast<int64_t>(r), Window(r));
    std::copy(of_row.begin(), of_row.end(), logits_.begin() + static_cast<int64_t>(r * vocab));
  }
  return logits_;
}

}  // namespace fsdp
