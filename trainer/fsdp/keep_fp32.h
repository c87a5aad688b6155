// Parameters that stay fp32 in a mixed-precision run, by name: master, gathered values, gradients
// and what travels. They are flat parameters of their own in their unit.
// Tests: tests/trainer/engine/mixed_precision_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_KEEP_FP32_H_
#define FSDP_TRAIN_TRAINER_FSDP_KEEP_FP32_H_

#include <cstddef>
#include <string>
#include <vector>

#include "trainer/nn/model.h"

namespace fsdp {

// Globs are over the names of slices (those of the Hugging Face file): `*` stands for any run of
// characters, `?` for one, `[...]` for one of a set. One that matches a slice keeps the parameter.
bool KeptInFp32(const std::vector<std::string>& globs, const Parameter& parameter);

// What is wrong with globs[glob]: it matches no parameter, or some slices of a matrix that another
// slice is put into and which no glob matches. By glob.
struct KeepMistake {
  size_t glob = 0;
  std::string message;
};
std::vector<KeepMistake> KeepMistakes(const std::vector<std::string>& globs, const Model& model);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_KEEP_FP32_H_
