// Words of other programs' recipes (PEFT, transformers' Trainer, TRL, axolotl), for hints.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_PEERS_H_
#define FSDP_TRAIN_TRAINER_RECIPE_PEERS_H_

#include <span>
#include <string_view>

namespace fsdp::recipe {

struct PeersWord {
  std::string_view word;
  std::string_view key;     // Our key, whole; empty where there is none.
  std::string_view remark;  // Goes with the hint; may be empty.
};

// Each word once; none of them is a key of ours.
std::span<const PeersWord> PeersWords();
const PeersWord* FindPeersWord(std::string_view word);  // Null where it is none.

struct PeersValue {
  std::string_view key;   // Our key, whole.
  std::string_view word;  // Other programs' value.
  std::string_view ours;  // Our value for it.
};

// None of the words is a value of ours.
std::span<const PeersValue> PeersValues();
// Ignores case; empty where the word is not in the list.
std::string_view FindPeersValue(std::string_view key, std::string_view word);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_PEERS_H_
