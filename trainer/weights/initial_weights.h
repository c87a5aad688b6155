// model.init_from: a Hugging Face directory (config.json, *.safetensors), one of our checkpoints,
// or a run directory, whose latest checkpoint is meant.
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_INITIAL_WEIGHTS_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_INITIAL_WEIGHTS_H_

#include <memory>
#include <string>
#include <vector>

#include "models/shape.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/fsdp/executor.h"
#include "trainer/nn/model.h"
#include "trainer/weights/run_tokenizer.h"

namespace fsdp {

// All throw CheckpointError that names the directory and what is wrong with it.

// The directory itself, or the latest checkpoint of a run directory.
std::string FindInitialWeights(const std::string& directory);
ModelShape ReadInitialShape(const std::string& directory);
// What of a model of this shape, whose other weights are the directory's, is drawn anew because it
// is for other classes there.
ModelHead HeadToDraw(const ModelShape& shape, const std::string& directory);
// Keys of a Hugging Face config.json that are not looked at; none of a checkpoint of ours.
std::vector<std::string> IgnoredKeys(const std::string& directory);
// The one that the weights were trained with: tokenizer.json or tokenizer.model in a Hugging Face
// directory, that of the run of a checkpoint. Its name is empty where nobody says.
RunTokenizer InitialTokenizer(const std::string& directory);
// The model whose parameters a checkpoint of ours holds: with adapters where its run had them.
std::unique_ptr<Model> ModelOfCheckpoint(const CheckpointReader& reader);
// What Executor::Initialize() takes. Both read byte ranges when they are called, on any thread, so
// a rank holds no more than its shard.
struct WeightSource {
  Executor::FillParameter parameters;
  ModelBuffers::Fill buffers;
  TableExchange::Fill rows;
};
// The adapters of a checkpoint are merged.
// Those of `head` are drawn elsewhere: they need not be there.
WeightSource OpenInitialWeights(const std::string& directory, const ModelHead& head = {});
WeightSource OpenInitialWeights(std::unique_ptr<CheckpointReader> checkpoint);
// A checkpoint's as they are, adapters apart; the averaged ones where `averaged`. Reads as the
// above. Throws CheckpointError where it holds none.
WeightSource OpenStoredWeights(std::unique_ptr<CheckpointReader> checkpoint, bool averaged);
// `read`, which throws CheckpointError where what it has read is not finite, naming the tensor.
// `source` and `use` are the message's: "model.init_from: DIR", "trained".
WeightSource RequireFinite(WeightSource read, const std::string& source, const std::string& use);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_INITIAL_WEIGHTS_H_
