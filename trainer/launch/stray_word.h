// What somebody meant by a word on the command line that has no flag in front.
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_STRAY_WORD_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_STRAY_WORD_H_

#include <string>

namespace fsdp {

// "a recipe is named by --config: fsdp-train --config tiny.yaml" of "tiny.yaml"; that of --set of
// "optimizer.lr=3"; empty of any other word. `command`: how the line begins, "fsdp-train".
std::string MeantBy(const std::string& word, const std::string& command);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_STRAY_WORD_H_
