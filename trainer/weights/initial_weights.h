// model.init_from: a Hugging Face directory (config.json, *.safetensors) or one of our checkpoints.
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_INITIAL_WEIGHTS_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_INITIAL_WEIGHTS_H_

#include <memory>
#include <string>
#include <vector>

#include "models/shape.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/fsdp/executor.h"
#include "trainer/nn/model.h"

namespace fsdp {

// Both throw CheckpointError that names the directory and what is wrong with it.
ModelShape ReadInitialShape(const std::string& directory);
// Keys of a Hugging Face config.json that are not looked at; none of a checkpoint of ours.
std::vector<std::string> IgnoredKeys(const std::string& directory);
// The model whose parameters a checkpoint of ours holds: with adapters where its run had them.
std::unique_ptr<Model> ModelOfCheckpoint(const CheckpointReader& reader);
// Reads byte ranges when it is called, on any thread, so a rank holds no more than its shard. The
// adapters of a checkpoint are merged.
Executor::FillParameter OpenInitialWeights(const std::string& directory);
Executor::FillParameter OpenInitialWeights(std::unique_ptr<CheckpointReader> checkpoint);
// `read`, which throws CheckpointError where what it has read is not finite, naming the tensor.
// `source` and `use` are the message's: "model.init_from: DIR", "trained".
Executor::FillParameter RequireFinite(Executor::FillParameter read, const std::string& source,
                                      const std::string& use);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_INITIAL_WEIGHTS_H_
