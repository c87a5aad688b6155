// The likely meaning of a word on the command line that has no flag in front.
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_STRAY_WORD_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_STRAY_WORD_H_

#include <string>

namespace fsdp {

// "a recipe is named by --config: fsdp-train --config tiny.yaml" for "tiny.yaml"; the like about
// --set for "optimizer.lr=3"; empty for any other word. `command`: how the line begins,
// "fsdp-train".
std::string MeantBy(const std::string& word, const std::string& command);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_STRAY_WORD_H_
