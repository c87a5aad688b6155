// Words of other programs' recipes (PEFT, transformers' Trainer, TRL, axolotl), for hints.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_PEERS_H_
#define FSDP_TRAIN_TRAINER_RECIPE_PEERS_H_

#include <span>
#include <string_view>

namespace fsdp::recipe {

struct PeersWord {
  std::string_view word;
  std::string_view key;     // Ours, whole; empty where there is none.
  std::string_view remark;  // What to know of it; may be empty.
};

// Each word once; none of them is a key of ours.
std::span<const PeersWord> PeersWords();
const PeersWord* FindPeersWord(std::string_view word);  // Null where it is none.

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_PEERS_H_
