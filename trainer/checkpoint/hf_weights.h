// Hugging Face directories as the start of a run: config.json, and model.safetensors or the files
// that model.safetensors.index.json names. The GPT-2 family
// (github.com/huggingface/transformers, models/gpt2/configuration_gpt2.py).
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_HF_WEIGHTS_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_HF_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/gpt2/config.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/view.h"

namespace fsdp {

// The shape that config.json states; a field that is not there has the default of transformers.
// Refuses by name what this version's GPT-2 does not compute: another model_type, an
// activation_function other than gelu_new and gelu_pytorch_tanh, scale_attn_weights false,
// scale_attn_by_inverse_layer_idx, reorder_and_upcast_attn, add_cross_attention,
// tie_word_embeddings false. Dropout (attn_pdrop, embd_pdrop, resid_pdrop) does not exist in this
// version: it acts in training only, so any value gives the same model and is ignored.
// Throws CheckpointError.
Gpt2Config ReadHfGpt2Config(const std::string& directory);

// Parameters in F32, F64, BF16 or F16, by name with or without "transformer." before it, both here
// and in the file. Whatever nobody asks for is ignored: attn.bias, attn.masked_bias,
// lm_head.weight. const calls may run in parallel.
class HfWeights {
 public:
  // Opens all files and reads their headers. Throws CheckpointError.
  explicit HfWeights(const std::string& directory);

  // Fills `out` with elements [begin, begin + out.size()) of the parameter. Throws CheckpointError
  // where there is no such parameter, or it has another shape; std::invalid_argument for a range
  // outside it.
  void Fill(const std::string& parameter, const Shape& shape, int64_t begin,
            std::span<float> out) const;

 private:
  struct Tensor {
    const SafetensorsReader* file = nullptr;
    std::string name;  // In the file.
  };

  std::string directory_;
  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  std::unordered_map<std::string, Tensor> tensors_;  // By name without the prefix.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_HF_WEIGHTS_H_
