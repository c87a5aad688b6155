// What Hugging Face's files of a Llama or a relative have beside the names of its parameters.
// Tests: tests/trainer/weights/hf_export_test.cc
#ifndef FSDP_TRAIN_MODELS_LLAMA_HF_NAMES_H_
#define FSDP_TRAIN_MODELS_LLAMA_HF_NAMES_H_

#include <array>
#include <string_view>

namespace fsdp {

inline constexpr std::string_view kLlamaHfTrunk = "model.";
// Rotary frequencies.
inline constexpr std::array<std::string_view, 1> kLlamaHfUnused = {".rotary_emb.inv_freq"};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_LLAMA_HF_NAMES_H_
