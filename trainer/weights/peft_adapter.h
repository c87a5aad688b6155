// A LoRA adapter of PEFT (github.com/huggingface/peft 0.21, docs/source/developer_guides/
// checkpoint.md), merged into weights as its merge_and_unload() does: W + scale x B A, where W is
// the adapter's own if it is stored whole (modules_to_save, biases, the base of an adapted
// embedding).
// Tests: tests/trainer/weights/peft_adapter_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_PEFT_ADAPTER_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_PEFT_ADAPTER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "trainer/checkpoint/safetensors.h"
#include "trainer/nn/parameter.h"
#include "trainer/weights/merged_weights.h"

namespace fsdp {

class Model;

// Whether a directory holds an adapter: adapter_config.json.
bool HoldsPeftAdapter(const std::string& directory);

// base_model_name_or_path of adapter_config.json; "" where it has none. Throws CheckpointError.
std::string PeftBase(const std::string& directory);

class PeftAdapter {
 public:
  // Opens adapter_model.safetensors. Each of its tensors must be a weight of `model`, or an A or a
  // B of one, and have its shape. Refuses by key of adapter_config.json what is more than W + scale
  // x B A. Throws CheckpointError. `is_tied`: the embedding is the head, so that neither can be
  // adapted without the other.
  PeftAdapter(const std::string& directory, const Model& model, bool is_tied);

  // Adds to elements [begin, begin + values.size()) of the model's parameter. Holds the matrices of
  // one parameter at a time. For any thread.
  void Add(const Parameter& parameter, int64_t begin, std::span<float> values) const;

 private:
  // One weight's: `factors` without its matrices.
  struct Place {
    std::string a, b;  // Tensors.
    LoraFactors factors;
  };
  using Loaded = std::vector<LoraFactors>;

  std::string NameOf(const std::string& tensor) const;  // In the file.
  void Require(const std::string& tensor, const Shape& shape) const;
  std::shared_ptr<const Loaded> Load(const Parameter& parameter) const;

  SafetensorsReader file_;
  std::unordered_map<std::string, std::vector<Place>> places_;  // By the parameter's name.
  std::unordered_map<std::string, std::string> whole_;  // Tensors, by the slice that they replace.
  mutable std::mutex mutex_;
  mutable std::string loaded_name_;
  mutable std::shared_ptr<const Loaded> loaded_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_PEFT_ADAPTER_H_
