// model.init_from: a Hugging Face directory (config.json, *.safetensors), one of our checkpoints,
// or a run directory, whose latest checkpoint is meant. Or a PEFT adapter, which is merged into
// model.base, or else into the weights beside it, or else into the base that it names.
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_INITIAL_WEIGHTS_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_INITIAL_WEIGHTS_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/family.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/fsdp/executor_callbacks.h"
#include "trainer/weights/run_tokenizer.h"

namespace fsdp {

class Model;
struct ModelRecipe;

// model.init_from and model.base. A directory alone stands for itself.
struct WeightsPath {
  WeightsPath(std::string of) : directory(std::move(of)) {}  // NOLINT(google-explicit-constructor)
  WeightsPath(const char* of) : directory(of) {}             // NOLINT(google-explicit-constructor)
  WeightsPath(const ModelRecipe& model);                     // NOLINT(google-explicit-constructor)

  std::string directory;
  std::string base;  // Empty: the adapter's own.
};

// All throw CheckpointError that names the directory and its fault.

// The directory itself, or the latest checkpoint of a run directory.
std::string FindInitialWeights(const WeightsPath& from);
// The same, but for an adapter its base.
std::string FindBaseWeights(const WeightsPath& from);
// Whether the files are Hugging Face's, not a checkpoint or a run of ours.
bool IsOfHuggingFace(const std::string& path);
ModelShape ReadInitialShape(const WeightsPath& from);
// The tokens that end a text, as ReadHfEos(); none for a checkpoint of ours.
std::vector<int32_t> InitialEos(const WeightsPath& from);
// The part of a model of this shape that is drawn anew because the directory has it for other
// classes, or `is_missing`. All other weights come from the directory.
struct HeadToDraw {
  ModelHead head = {};  // Without tensors: none is drawn.
  bool is_missing = false;
};
HeadToDraw FindHeadToDraw(const ModelShape& shape, const WeightsPath& from);
// Keys of a Hugging Face config.json that are ignored; none for a checkpoint of ours.
std::vector<std::string> IgnoredKeys(const WeightsPath& from);
// Where files are read otherwise than their config.json says (HfConfig::notes), and adapters
// that are merged.
std::vector<std::string> InitialNotes(const WeightsPath& from);
// The tokenizer that the weights were trained with: tokenizer.json or tokenizer.model of a Hugging
// Face directory, or that of a checkpoint's run. Its name is empty where none is known.
RunTokenizer InitialTokenizer(const WeightsPath& from);
// The model whose parameters a checkpoint of ours holds, with adapters if its run had them.
std::shared_ptr<Model> ModelOfCheckpoint(const CheckpointReader& reader);
// Arguments of Executor::Initialize(). They read byte ranges when they are called, on any thread,
// so a rank holds no more than its shard.
struct WeightSource {
  FillParameter parameters;
  FillBuffer buffers = nullptr;
  FillRows rows = nullptr;
  // For coded weights, where they are not made of `parameters` (fsdp/records.h).
  std::optional<RecordSource> records = {};
};
// For Executor::InitializeBase().
RecordSource RecordsOf(const WeightSource& source);
// Throws ConfigError where files have a weight in four bits in another form than the model's.
void RequireForms(const WeightSource& source, const Model& model);
// Merges the adapters of a checkpoint. Parameters of `head` are drawn elsewhere and need not be
// there.
WeightSource OpenInitialWeights(const WeightsPath& from, const ModelHead& head = {});
WeightSource OpenInitialWeights(std::unique_ptr<CheckpointReader> checkpoint);
// A checkpoint's weights as stored, adapters apart; with `averaged` the averaged weights. Throws
// CheckpointError where the checkpoint has none.
WeightSource OpenStoredWeights(std::unique_ptr<CheckpointReader> checkpoint, bool averaged);
// `read`, with a check: throws CheckpointError, naming the tensor, for values that are not finite.
// `source` and `use` are for the message: "model.init_from: DIR", "trained".
WeightSource RequireFinite(WeightSource read, const std::string& source, const std::string& use);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_INITIAL_WEIGHTS_H_
