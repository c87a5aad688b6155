// An entry of a rule table in device memory: see element_rules.h.
// Tests: tests/trainer/ops/element_rules_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ELEMENT_RULE_H_
#define FSDP_TRAIN_TRAINER_OPS_ELEMENT_RULE_H_

#include <cstdint>

namespace fsdp {

// For elements [begin, end). Elements without a rule have the default values: no decay.
struct ElementRule {
  int64_t begin = 0, end = 0;
  double weight_decay = 0;  // >= 0.
  double lr_scale = 1;      // >= 0; multiplies the learning rate.
  // The key of an element's random numbers, the same in whichever shard the element lies: a hash of
  // its tensor's name (a slice's name, as in the Hugging Face file), and the index of `begin` in
  // that tensor.
  uint64_t tensor = 0;
  int64_t element = 0;  // >= 0.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ELEMENT_RULE_H_
