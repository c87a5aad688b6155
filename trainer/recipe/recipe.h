// A run's settings, read from YAML and resolved: every default filled in, nothing left to
// interpret. The members are the recipe's keys, the initialisers its defaults. Ranges, meanings and
// documentation are in schema.cc, data_section.cc and model_section.cc. Enumerators are in the
// order of their names; an enum of a lower room is that room's own.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_RECIPE_H_
#define FSDP_TRAIN_TRAINER_RECIPE_RECIPE_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>
#include <variant>
#include <vector>

#include "models/field.h"
#include "trainer/autograd/activation_options.h"
#include "trainer/autograd/balance_options.h"
#include "trainer/core/dtype.h"
#include "trainer/data/pairs/span_corruption.h"
#include "trainer/data/samples/packing.h"
#include "trainer/fsdp/options.h"
#include "trainer/nn/lora_options.h"
#include "trainer/optim/kind.h"
#include "trainer/optim/lr_schedule.h"

namespace fsdp {

class ModelShape;

struct RunRecipe {
  enum class Device { kAuto, kCpu, kCuda, kSim };
  static constexpr int64_t kMaxThreads = 4096;  // More than any host has cores.

  std::string name = "run";
  std::optional<std::string> dir;  // runs/<name> where empty.
  int64_t seed = 1337;
  Device device = Device::kAuto;
  int64_t threads = 0;  // 0: AvailableCores() / the host's ranks.
  bool deterministic = false;
  double timeout_s = 600;
  std::optional<int64_t> max_time;      // Seconds.
  std::optional<int64_t> memory_limit;  // Bytes of a rank; see the key.
  std::optional<int64_t> store_port;

  std::string Directory() const { return dir ? *dir : "runs/" + name; }
  bool operator==(const RunRecipe&) const = default;
};

struct ModelRecipe {
  std::optional<std::string> family;  // Empty only under init_from without preset.
  std::optional<std::string> preset;
  std::optional<std::string> init_from;
  std::optional<std::string> base;  // Only with init_from: that of a PEFT adapter.
  std::optional<LoraOptions> lora;  // Only with init_from.
  int64_t vocab_multiple = 1;       // Divides vocab_size.
  // The family's fields (models/family.h) by name. Under init_from without preset, fields of the
  // shape may be absent: the files there decide. Otherwise LoadRecipe has filled them. Dropouts may
  // be absent only under init_from, whose files then decide.
  FieldValues fields;

  // A field that is given; `T`: its type.
  template <typename T>
  std::optional<T> Get(std::string_view field) const {
    const auto at = fields.find(field);
    return at == fields.end() ? std::nullopt : std::optional<T>(std::get<T>(at->second));
  }

  bool operator==(const ModelRecipe&) const = default;
};

// The keys that belong to one source of data: a struct of that source's own, where somebody gave
// one of them.
class OwnKeys {
 public:
  template <typename Keys>
  const Keys& Of() const {
    static const Keys kDefaults{};
    const auto at = given_.find(typeid(Keys));
    return at == given_.end() ? kDefaults : *static_cast<const Keys*>(at->second.keys.get());
  }
  // To be changed at once: a copy of this shares the struct until Change() is called again.
  template <typename Keys>
  Keys& Change() {
    auto own = std::make_shared<Keys>(Of<Keys>());
    Keys& keys = *own;
    given_[typeid(Keys)] = {std::move(own), [](const OwnKeys& a, const OwnKeys& b) {
                              return a.Of<Keys>() == b.Of<Keys>();
                            }};
    return keys;
  }

  bool operator==(const OwnKeys& other) const;

 private:
  struct Given {
    std::shared_ptr<const void> keys;
    bool (*equal)(const OwnKeys& a, const OwnKeys& b);
  };
  std::map<std::type_index, Given> given_;
};

struct SourceRecipe {
  std::string source = "text";      // The name of a row of DataSources() (data_source.h).
  std::vector<std::string> paths;   // ExpandPaths(); not empty for files, else empty.
  std::string tokenizer = "bytes";  // Or the path of a tokenizer.json or SentencePiece .model.
  std::string column = "text";      // A field of .jsonl.
  std::optional<int64_t> eot;       // Empty: the tokenizer's, or the one in tokens.json.
  OwnKeys own;
  double weight = 1;  // In a list of data.train.
  std::string name;   // In a list of data.valid: not empty, no two alike.

  bool operator==(const SourceRecipe&) const = default;
};

struct HeldOut {
  double fraction = 0.05;  // The last part of each source of data.train, never trained on.

  bool operator==(const HeldOut&) const = default;
};

// One source, or a list in which each has a weight or a name. A list is not empty.
using TrainRecipeSources = std::variant<SourceRecipe, std::vector<SourceRecipe>>;
struct ValidRecipe
    : std::variant<std::monostate, HeldOut, SourceRecipe, std::vector<SourceRecipe>> {
  using variant::variant;
};

struct DataRecipe {
  // How samples are made from a source's tokens.
  enum class Objective { kCausal, kSeq2Seq, kSpanCorruption };

  TrainRecipeSources train;
  ValidRecipe valid = HeldOut{};  // monostate: none.
  int64_t seq_len = 256;
  Objective objective = Objective::kCausal;
  std::optional<int64_t> target_len;  // TargetLength() where empty. Not for kCausal.
  double noise_density = SpanOptions().noise_density;  // kSpanCorruption.
  double mean_span = SpanOptions().mean_span;
  bool shuffle = true;
  std::optional<std::string> cache;  // CacheDirectory("tokens") where empty.
  bool documents = false;            // With windows only.
  Packing packing = Packing::kWindows;
  TooLong too_long = TooLong::kError;  // Not with windows.
  bool allow_invalid_text = false;
  bool allow_changed = false;  // On a resume.
  int64_t threads = 1;         // Prepare the next batch.

  std::span<const SourceRecipe> TrainSources() const;
  std::span<const SourceRecipe> ValidSources() const;  // Empty where valid has none of its own.
  // A row may hold several documents, apart from each other.
  bool SeparatesDocuments() const { return documents || packing != Packing::kWindows; }
  // The key that asks for an end-of-text token, as it is named in messages; empty: none.
  std::string WantsEot() const;
  SpanOptions spans() const { return {noise_density, mean_span}; }
  // Targets of a sample; 0 with kCausal, whose targets are its tokens.
  int64_t TargetLength() const;

  bool operator==(const DataRecipe&) const = default;
};

struct KeyedSource {
  const SourceRecipe* source;
  std::string list;  // "data.train" or "data.valid".
  std::string key;   // The same, or "data.train[1]" in a list.
};
// Train's, then those that valid has of its own. Points into `data`.
std::vector<KeyedSource> KeyedSources(const DataRecipe& data);

// The tokenizer's name; null where none is named (tokens made elsewhere).
const std::string* TokenizerOf(const SourceRecipe& source);
const std::string* TokenizerOf(const DataRecipe& data);  // The first that a train source has.

struct EmaRecipe {
  double decay = 0.999;

  bool operator==(const EmaRecipe&) const = default;
};

struct RouterRecipe {
  std::optional<double> aux_loss;  // null: WithShape() decides, as of bias_rate.
  BalanceScope aux_scope = BalanceScope::kSequence;
  double z_loss = 0;
  std::optional<double> bias_rate;

  bool operator==(const RouterRecipe&) const = default;
};

struct TrainRecipe {
  enum class Attention { kFlash, kMath };
  enum class BatchNorm { kLocal, kSync };

  int64_t steps = 100;             // 0: open until the data is, by epochs.
  std::optional<double> epochs;    // In place of steps.
  int64_t micro_batch_size = 8;    // Sequences per rank and forward pass.
  int64_t global_batch_size = 32;  // Sequences per optimizer step, over all ranks.
  double grad_clip = 1.0;          // 0: off.
  Attention attention = Attention::kFlash;
  BatchNorm batch_norm = BatchNorm::kLocal;
  RouterRecipe router;
  Recompute activation_checkpointing = Recompute::kNone;
  ActivationOffload activation_offload = ActivationOffload::kNone;
  std::optional<EmaRecipe> ema;
  int64_t max_skipped_steps = 0;  // Over the run, without those that a loss scaler skips.

  bool operator==(const TrainRecipe&) const = default;
};

struct SampleRecipe {
  std::string prompt;        // Not empty.
  int64_t max_tokens = 200;  // New ones, after the prompt.
  double temperature = 0.8;  // 0: always the likeliest token.

  bool operator==(const SampleRecipe&) const = default;
};

struct EvalRecipe {
  int64_t every = 0;  // Steps; 0: never.
  int64_t steps = 20;
  std::optional<SampleRecipe> sample;
  bool ema = false;
  std::optional<int64_t> stop_after;  // Evaluations in a row without a lower loss.

  bool operator==(const EvalRecipe&) const = default;
};

struct GroupRecipe {
  std::string match;  // A glob over parameter names; the first group that matches counts.
  std::optional<double> weight_decay;
  double lr_scale = 1;
  bool frozen = false;
  std::optional<GroupRule> rule;     // Instead of optimizer.name's.
  std::optional<DType> state_dtype;  // As OptimizerRecipe's.

  bool operator==(const GroupRecipe&) const = default;
};

struct OptimizerRecipe {
  using Kind = OptimizerKind;

  Kind name = Kind::kAdamW;
  double lr = 3e-4;
  std::array<double, 2> betas = {0.9, 0.95};  // AdamW.
  double eps = 1e-8;                          // AdamW.
  double momentum = 0;                        // SGD.
  double weight_decay = 0.1;
  DType state_dtype = DType::kFloat32;  // kUInt8: 8bit.
  std::optional<double> table_lr;       // For embedding tables; lr where empty.
  std::vector<GroupRecipe> groups;
  MuonOptions muon;
  AdafactorOptions adafactor;

  bool operator==(const OptimizerRecipe&) const = default;
};

struct ScheduleRecipe {
  using Kind = LrShape;
  using Decay = LrDecay;

  Kind name = Kind::kCosine;
  int64_t warmup_steps = 0;  // At most train.steps.
  double min_lr_ratio = 0.1;
  std::optional<int64_t> decay_steps;  // wsd; a tenth of train.steps where empty.
  Decay decay = Decay::kSqrt;          // wsd.

  bool operator==(const ScheduleRecipe&) const = default;
};

struct ResumeRecipe {
  enum class Kind { kAuto, kNone, kStep, kDirectory };

  Kind kind = Kind::kAuto;
  int64_t step = 0;            // kStep.
  std::string directory = {};  // kDirectory.

  bool operator==(const ResumeRecipe&) const = default;
};

struct CheckpointRecipe {
  // Steps, and at the end; 0: at the end alone; null: only where a signal asks for one.
  std::optional<int64_t> every = 0;
  std::optional<double> every_minutes;
  int64_t keep_last = 3;  // 0: all.
  int64_t keep_best = 0;  // By evaluation loss, beside those.
  bool async = true;
  ResumeRecipe resume;
  std::vector<std::string> allow_changed{};  // Values of AllowedChanges() (model_fields.h).

  bool Allows(std::string_view change) const;
  bool operator==(const CheckpointRecipe&) const = default;
};

struct LogRecipe {
  int64_t every = 1;  // Steps.
  bool tensorboard = true;
  int64_t expert_loads_every = 100;  // Steps.
  std::vector<int64_t> trace_steps;
  double spike_z = 6.0;  // Standard deviations; 0: off.

  bool operator==(const LogRecipe&) const = default;
};

struct BlockCut;
struct ShapeConflict;

struct Recipe {
  // In recipe.cc: every source that copies or destroys a recipe would take 0.8 s longer to compile.
  Recipe();
  Recipe(const Recipe&);
  Recipe(Recipe&&) noexcept;
  Recipe& operator=(const Recipe&);
  Recipe& operator=(Recipe&&) noexcept;
  ~Recipe();

  RunRecipe run;
  ModelRecipe model;
  DataRecipe data;
  TrainRecipe train;
  EvalRecipe eval;
  OptimizerRecipe optimizer;
  ScheduleRecipe schedule;
  FsdpOptions fsdp;
  CheckpointRecipe checkpoint;
  LogRecipe log;

  // Where each given key was written last: "file:line:column" or "--set key=value". == leaves
  // `places` and `notes` out.
  std::map<std::string, std::string> places;
  // Settings that were found in files rather than given, a line each, for people.
  std::vector<std::string> notes;

  // "place: key: message", or "key: message" for a key left at its default: for mistakes that show
  // only when the run starts.
  std::string Mistake(const std::string& key, const std::string& message) const;
  // At the first of the keys that somebody wrote.
  std::string Mistake(const std::vector<std::string>& keys, const std::string& message) const;
  // Throws ConfigError with a line for each conflict, if there are any.
  void Refuse(const std::vector<ShapeConflict>& conflicts) const;

  bool operator==(const Recipe& other) const;
};

// The names that recipes use, in the enumerators' order.
constexpr auto NamesOf(RunRecipe::Device) {
  return std::to_array<std::string_view>({"auto", "cpu", "cuda", "sim"});
}
constexpr auto NamesOf(DataRecipe::Objective) {
  return std::to_array<std::string_view>({"causal", "seq2seq", "span_corruption"});
}
constexpr auto NamesOf(Packing) { return std::array{"windows", "samples", "none"}; }
constexpr auto NamesOf(TooLong) { return std::array{"error", "cut", "drop"}; }
constexpr auto NamesOf(ActivationOffload) { return std::array{"none", "host", "spill"}; }
constexpr auto NamesOf(TrainRecipe::Attention) { return std::array{"flash", "math"}; }
constexpr auto NamesOf(TrainRecipe::BatchNorm) { return std::array{"local", "sync"}; }
constexpr auto NamesOf(BalanceScope) { return std::array{"sequence", "step"}; }
constexpr auto NamesOf(Recompute) {
  return std::to_array<std::string_view>({"none", "selective", "full"});
}
constexpr auto NamesOf(OptimizerRecipe::Kind) {
  return std::to_array<std::string_view>({"adamw", "sgd", "muon", "adafactor"});
}
constexpr auto NamesOf(LoraBase) {
  return std::to_array<std::string_view>({"none", "nf4", "int8"});
}
constexpr auto NamesOf(BaseScales) { return std::to_array<std::string_view>({"fp32", "8bit"}); }
constexpr auto NamesOf(GroupRule) { return std::to_array<std::string_view>({"adamw"}); }
constexpr auto NamesOf(AdjustLr) {
  return std::to_array<std::string_view>({"original", "match_rms_adamw"});
}
constexpr auto NamesOf(ScheduleRecipe::Kind) {
  return std::to_array<std::string_view>({"cosine", "linear", "wsd", "constant"});
}
constexpr auto NamesOf(ScheduleRecipe::Decay) {
  return std::to_array<std::string_view>({"sqrt", "linear", "cosine"});
}
constexpr auto NamesOf(Strategy) {
  return std::to_array<std::string_view>(
      {"full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_grad_op", "no_shard"});
}
constexpr auto NamesOf(AutoWrap) {
  return std::to_array<std::string_view>(
      {"transformer_block", "branch", "experts", "size", "none"});
}
constexpr auto NamesOf(WrapPolicy::Outside) {
  return std::to_array<std::string_view>({"units", "root"});
}
constexpr auto NamesOf(BackwardPrefetch) {
  return std::to_array<std::string_view>({"pre", "post", "none"});
}
constexpr auto NamesOf(FsdpOptions::Limiter) {
  return std::to_array<std::string_view>({"device", "host"});
}
constexpr auto NamesOf(FsdpOptions::MixedPrecision::CastIn) {
  return std::to_array<std::string_view>({"optimizer", "gather"});
}
constexpr auto NamesOf(FsdpOptions::MixedPrecision::Sum) {
  return std::to_array<std::string_view>({"nccl", "exact"});
}
constexpr auto NamesOf(FsdpOptions::Quantize::Gather) {
  return std::to_array<std::string_view>({"none", "int8", "fp8"});
}
constexpr auto NamesOf(FsdpOptions::Quantize::Reduce) {
  return std::to_array<std::string_view>({"none", "int8", "int4"});
}
constexpr auto NamesOf(FsdpOptions::Buffers) {
  return std::to_array<std::string_view>({"slots", "caching"});
}
constexpr auto NamesOf(Accumulation) {
  return std::to_array<std::string_view>({"sharded", "unsharded"});
}

template <typename E>
requires requires(E e) { NamesOf(e); }
constexpr std::string_view Name(E value) { return NamesOf(value)[static_cast<size_t>(value)]; }

// The shape to build. Throws std::invalid_argument where a field is empty.
ModelShape ShapeOf(const ModelRecipe& model);

// The vocabulary for a tokenizer of `tokens`: rounded up to a multiple of model.vocab_multiple.
int64_t RoundedVocabulary(const ModelRecipe& model, int64_t tokens);

// The recipe with the family, the shape and the dropouts that it trains with, which is how a run
// records it.
Recipe WithShape(const Recipe& recipe, const ModelShape& shape);

// Why a recipe cannot be trained: no model has this shape, the data does not fit it, or an op does
// not compute it.
struct ShapeConflict {
  std::vector<std::string> keys;  // All that are involved, the most telling one first.
  std::string message;
};
std::vector<ShapeConflict> ShapeConflicts(const Recipe& recipe, const ModelShape& shape);

// How the policy cuts blocks; and why the shape's experts cannot be cut like that.
BlockCut CutOf(const WrapPolicy& policy);
std::optional<ShapeConflict> ExpertPiecesMistake(const Recipe& recipe, const ModelShape& shape);

// Fields that the recipe has and the family has not.
std::vector<ShapeConflict> FamilyConflicts(const ModelRecipe& model, std::string_view family);

// Fields that disagree with the shape found under init_from and that no recipe may change. A
// conflict names both values; those of ShapeConflicts() come with them. `where` names the files in
// messages.
std::vector<ShapeConflict> Disagreements(const Recipe& recipe, const ModelShape& files,
                                         const std::string& where);

// The shape to build under init_from: the files', with what the recipe may change in it (dropouts,
// the head's classes, Field::is_free).
// Throws ConfigError with a line for each of Disagreements().
ModelShape ShapeOf(const Recipe& recipe, const ModelShape& files, const std::string& where);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RECIPE_RECIPE_H_
