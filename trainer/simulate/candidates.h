// The recipes that `plan --search` tries: one recipe with other settings of memory, sharding and
// order, none of which changes results but by rounding.
// Tests: tests/trainer/simulate/search_test.cc
#ifndef FSDP_TRAIN_TRAINER_SIMULATE_CANDIDATES_H_
#define FSDP_TRAIN_TRAINER_SIMULATE_CANDIDATES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "trainer/recipe/hardware.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

struct SearchSpace {
  Recipe recipe;
  int world = 1, local_world = 1;  // local_world: ranks of a host.
  Hardware hardware;
  // The model has batch norms over a rank's micro-batch: its size changes results.
  bool normalizes = false;
};

struct Candidate {
  // "KEY=VALUE" as --set has it, of each setting that is another than the recipe's own.
  std::vector<std::string> overrides;
  // Candidates of a group compute and move the same. They differ in when, and in slots.
  size_t group = 0;
};

// All candidates, the recipe itself first. Groups are counted from 0, in order. Combinations that
// the recipe's own checks refuse are among them.
std::vector<Candidate> CandidatesOf(const SearchSpace& space);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_CANDIDATES_H_
