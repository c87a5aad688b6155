// The weights that get adapters (lora.h), the size of these, and what trains beside them.
// Tests: tests/trainer/nn/lora_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_LORA_OPTIONS_H_
#define FSDP_TRAIN_TRAINER_NN_LORA_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;
  // The adapted weights in blocks. A target is a glob over their names in the Hugging Face file,
  // or, as in PEFT's target_modules, a module's name or its last parts in any layer (`q_proj`,
  // `self_attn.q_proj`). Each slice that a target matches gets an adapter of its own.
  std::vector<std::string> targets = {"*"};
  double dropout = 0;  // The share of an adapter's input that falls away in training.
  // Parameters that train whole, by globs or modules as above, of any kind and in any segment. A
  // weight among them gets no adapter.
  std::vector<std::string> full = {};

  bool operator==(const LoraOptions&) const = default;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_LORA_OPTIONS_H_
