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

struct PeersValue {
  std::string_view key;   // Ours, whole.
  std::string_view word;  // What others write there.
  std::string_view ours;  // What to write instead.
};

// None of the words is a value of ours.
std::span<const PeersValue> PeersValues();
// Whatever its case; empty where it is none.
std::string_view FindPeersValue(std::string_view key, std::string_view word);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_PEERS_H_
