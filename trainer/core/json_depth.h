// How deep a JSON text nests, told before it is parsed: a walk of a document takes the stack.
// Tests: tests/trainer/core/json_tree_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_JSON_DEPTH_H_
#define FSDP_TRAIN_TRAINER_CORE_JSON_DEPTH_H_

#include <string_view>

namespace fsdp {

// Looks at brackets outside of strings alone: what is no JSON the parser refuses.
bool NestsDeeper(std::string_view text, int levels);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_JSON_DEPTH_H_
