// What Hugging Face's files have beside the names of a family's parameters.
// Tests: tests/trainer/weights/hf_export_test.cc
#ifndef FSDP_TRAIN_MODELS_HF_NAMES_H_
#define FSDP_TRAIN_MODELS_HF_NAMES_H_

#include <array>
#include <span>
#include <string_view>
#include <variant>

#include "models/gpt2/hf_names.h"
#include "models/llama/hf_names.h"
#include "models/shape.h"

namespace fsdp {

struct HfNames {
  // What the family's class calls the model below its head: stands before names, or does not.
  std::string_view trunk;
  // How names of tensors end that older files hold besides weights.
  std::span<const std::string_view> unused;
};

// By family, in the order of kFamilies.
inline constexpr std::array<HfNames, std::variant_size_v<ModelShape>> kHfNames = {
    {{kGpt2HfTrunk, kGpt2HfUnused}, {kLlamaHfTrunk, kLlamaHfUnused}}};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_HF_NAMES_H_
