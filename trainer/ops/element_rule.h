// What a rule table in device memory is made of: see element_rules.h.
// Tests: tests/trainer/ops/element_rules_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ELEMENT_RULE_H_
#define FSDP_TRAIN_TRAINER_OPS_ELEMENT_RULE_H_

#include <cstdint>

namespace fsdp {

// For elements [begin, end). What no rule covers has the default values: no decay.
struct ElementRule {
  int64_t begin = 0, end = 0;
  double weight_decay = 0;  // >= 0.
  double lr_scale = 1;      // >= 0; multiplies the learning rate.
  // What random numbers of an element are keyed by, whichever shard it lies in: a hash of the name
  // of its tensor (of a slice, as in the Hugging Face file), and where in it `begin` is.
  uint64_t tensor = 0;
  int64_t element = 0;  // >= 0.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ELEMENT_RULE_H_
