// The weights that get adapters (lora.h), the size of these, and what trains beside them.
// Tests: tests/trainer/nn/lora_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_LORA_OPTIONS_H_
#define FSDP_TRAIN_TRAINER_NN_LORA_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/ops/weight_code.h"

namespace fsdp {

// The form of frozen weights of linear layers in blocks (ops/weight_codes.h).
enum class LoraBase : uint8_t { kNone, kNf4, kInt8 };
enum class BaseScales : uint8_t { kFp32, k8Bit };  // kNf4's; 8 bits are "double quantisation".

struct LoraOptions {
  int64_t rank = 8;  // 0: no adapters. Then optimizer.groups says what is frozen.
  double alpha = 16;
  // The adapted weights in blocks. A target is a glob over their names in the Hugging Face file,
  // or, as in PEFT's target_modules, a module's name or its last parts in any layer (`q_proj`,
  // `self_attn.q_proj`). Each slice that a target matches gets an adapter of its own.
  std::vector<std::string> targets = {"*"};
  double dropout = 0;  // The share of an adapter's input that falls away in training.
  // Parameters that train whole, by globs or modules as above, of any kind and in any segment. A
  // weight among them gets no adapter.
  std::vector<std::string> full = {};
  LoraBase base = LoraBase::kNone;
  BaseScales base_scales = BaseScales::k8Bit;
  std::vector<std::string> base_exclude = {};  // Weights that keep param_dtype: globs or modules.

  WeightCode code() const {
    if (base == LoraBase::kNone) return WeightCode::kNone;
    if (base == LoraBase::kInt8) return WeightCode::kInt8;
    return base_scales == BaseScales::k8Bit ? WeightCode::kNf4Nested : WeightCode::kNf4;
  }
  bool operator==(const LoraOptions&) const = default;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_LORA_OPTIONS_H_
