// Parameters that stay fp32 in a mixed-precision run, by name: their masters, gathered values,
// gradients and wire data. They are flat parameters of their own in their unit.
// Tests: tests/trainer/engine/mixed_precision_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_KEEP_FP32_H_
#define FSDP_TRAIN_TRAINER_FSDP_KEEP_FP32_H_

#include <cstddef>
#include <string>
#include <vector>

#include "trainer/nn/parameter.h"

namespace fsdp {

class Model;

// Globs match the names of slices (those of the Hugging Face file): `*` stands for any run of
// characters, `?` for one, `[...]` for one of a set. A parameter is kept if a glob matches one of
// its slices.
bool KeptInFp32(const std::vector<std::string>& globs, const Parameter& parameter);

// The fault of globs[glob]: it matches no parameter, or it matches slices of a matrix that has
// other slices which no glob matches.
struct KeepMistake {
  size_t glob = 0;
  std::string message;
};
std::vector<KeepMistake> KeepMistakes(const std::vector<std::string>& globs, const Model& model);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_KEEP_FP32_H_
