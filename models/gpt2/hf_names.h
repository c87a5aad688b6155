// What Hugging Face's files of a GPT-2 have beside the names of its parameters.
// Tests: tests/trainer/weights/hf_export_test.cc
#ifndef FSDP_TRAIN_MODELS_GPT2_HF_NAMES_H_
#define FSDP_TRAIN_MODELS_GPT2_HF_NAMES_H_

#include <array>
#include <string_view>

namespace fsdp {

inline constexpr std::string_view kGpt2HfTrunk = "transformer.";
// Causal masks.
inline constexpr std::array<std::string_view, 2> kGpt2HfUnused = {".attn.bias",
                                                                  ".attn.masked_bias"};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_GPT2_HF_NAMES_H_
