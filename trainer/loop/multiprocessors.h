// A GPU's multiprocessors, shared out between collectives and products: a collective of NCCL holds
// the ones it has for as long as it runs, and a product whose tiles count on all of them then needs
// a second wave.
// Tests: tests/trainer/loop/multiprocessors_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_MULTIPROCESSORS_H_
#define FSDP_TRAIN_TRAINER_LOOP_MULTIPROCESSORS_H_

#include <string>

namespace fsdp {

class Choice;
struct Recipe;

struct Multiprocessors {
  int all = 0;          // 0: unknown, or no GPU.
  int collectives = 0;  // Those that a collective takes at most. 0: NCCL decides.

  // Those that products run on. 0: all.
  int products() const { return all > 0 && collectives > 0 ? all - collectives : 0; }
  // "collectives take at most 8 of 132 multiprocessors, products run on the other 124"; empty
  // where NCCL decides.
  std::string Text() const;
};

// A job's GPUs; where they differ, the least of each number.
struct GpuKind {
  int major = 0;            // Compute capability.
  int in_reach = 1;         // GPUs of a host that reach each other's memory.
  int multiprocessors = 0;  // 0: unknown.
};

// As fsdp.collective_blocks has it, or by the machine where that is null: in_reach of 4 or more at
// capability 9.0 stands for NVLink SHARP, where the switch adds. Throws ConfigError, with place,
// where products would be left without a multiprocessor.
Multiprocessors ShareOut(const Recipe& recipe, const GpuKind& gpus);

// ChoiceId::kBlocks, into run.multiprocessors, where collectives go over NCCL. Ranks tell each
// other what GPUs they have, and take one number.
const Choice& BlocksChoice();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_MULTIPROCESSORS_H_
