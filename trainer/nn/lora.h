// Low-rank adaptation (Hu et al. 2021, arXiv:2106.09685): the model's linear layers are frozen and
// get adapters, which train. For a weight W of y = x W (as a matrix [in, out]):
//   y += alpha / rank d(x) A^T B^T     A: [rank, in], B: [out, rank], d: dropout in training
// A starts as noise with the variance that torch.nn.Linear gives it, 1 / (3 in), and B as zero, so
// the model starts unchanged. Adapters belong to the weight, and the linear layer adds them: no
// model knows of adapters, so every family has them.
#ifndef FSDP_TRAIN_TRAINER_NN_LORA_H_
#define FSDP_TRAIN_TRAINER_NN_LORA_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "trainer/nn/lora_options.h"
#include "trainer/nn/model.h"

namespace fsdp {

// A weight's name without .weight.
std::string ModuleOf(const std::string& weight);

inline constexpr const char* kPeftPrefix = "base_model.model.";

// Names of an adapter's two parameters, as PEFT (github.com/huggingface/peft) writes them:
// base_model.model.<the weight's name without .weight>.lora_A.weight, and lora_B.
std::string LoraName(const std::string& weight, char part);

// Indices of the `targets` that match no weight of a linear layer in a block. Sets `example` to a
// name that a target could match.
std::vector<size_t> UnmatchedTargets(const Model& base, const std::vector<std::string>& targets,
                                     std::string* example);

// An entry of LoraOptions::full that matches nothing, or not all of a matrix.
struct FullMistake {
  size_t entry;
  std::string message;
};
std::vector<FullMistake> FullMistakes(const Model& base, const std::vector<std::string>& full);

// A mistake of LoraOptions::base_exclude, or without an entry of LoraOptions::base.
struct BaseMistake {
  std::optional<size_t> entry;
  std::string message;
};

// Keeps the frozen weights of linear layers in blocks, but for those of base_exclude, as records
// (Parameter::Encode). Returns the mistakes; after one the model is not to be used. Mistakes: an
// entry that matches no frozen weight, or not all of a matrix; nothing that is left to encode.
std::vector<BaseMistake> EncodeFrozen(const Model& model, const LoraOptions& options);

// Why adapters cannot be put beside experts as the options ask; empty: they can. Experts of a layer
// are adapted together, and their adapters drop nothing, as in PEFT: a row is an expert's, and no
// sample's.
std::string ExpertMistake(const Model& base, const LoraOptions& options);

class LoraModel final : public Model {
 public:
  // Freezes all parameters of `base` but those of options.full. Throws std::invalid_argument for a
  // rank < 1, for a target that matches no weight, for FullMistakes() and for ExpertMistake(); the
  // message names the entry.
  LoraModel(std::shared_ptr<Model> base, const LoraOptions& options);

  const std::vector<ModelSegment>& segments() const override { return segments_; }
  void Loss(Tape& tape, const Batch& batch, float scale, View loss) const override;
  BatchSpec Inputs(int64_t length) const override { return base_->Inputs(length); }
  const EvalMetric* eval_metric() const override { return base_->eval_metric(); }
  int64_t predictions() const override { return base_->predictions(); }
  void Predict(Tape& tape, const Batch& batch, View scores) const override {
    base_->Predict(tape, batch, scores);
  }
  const Autoregressive* autoregressive() const override { return base_->autoregressive(); }
  int64_t fewest_normed_pixels() const override { return base_->fewest_normed_pixels(); }
  std::vector<EmbeddingTable> tables() const override { return base_->tables(); }
  WeightLayout linear_layout() const override { return base_->linear_layout(); }

  bool has_adapters() const { return !adapters_.empty(); }

 private:
  // `slices`: one, or that of each expert.
  void Adapt(Parameter& weight, const std::vector<ParameterSlice>& slices,
             const LoraOptions& options, ModelSegment& segment);

  std::shared_ptr<Model> base_;
  std::vector<std::unique_ptr<Parameter>> adapters_;
  // Adapters to parameters in pieces have the name of the first piece's: by weight, column and
  // part.
  std::map<std::tuple<std::string, int64_t, char>, std::string> names_;
  std::vector<ModelSegment> segments_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_LORA_H_
