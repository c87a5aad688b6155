// Words of other trainers (transformers' Trainer, PEFT and TRL, axolotl, torchtitan, LitGPT,
// DeepSpeed, torchrun, accelerate) and what they are here: the tables behind "did you mean".
// Tests: tests/trainer/recipe/peers_words_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_PEERS_WORDS_H_
#define FSDP_TRAIN_TRAINER_CORE_PEERS_WORDS_H_

#include <span>
#include <string>
#include <string_view>

namespace fsdp {

// In place of our word where there is none.
inline constexpr std::string_view kNotInThisVersion = "not in this version";
inline constexpr std::string_view kNotNeeded = "not needed";

struct PeersWord {
  std::string_view word;
  std::string_view ours;    // Or one of the two above.
  std::string_view remark;  // Goes with the hint; empty only beside a word of ours.

  bool HasOurs() const { return ours != kNotInThisVersion && ours != kNotNeeded; }
};

// Keys. `word`: a key alone; with our section before it where the section says which key is meant;
// with a dot behind it for a key that holds a map. `ours`: a key with its section.
std::span<const PeersWord> PeersKeys();
// Flags. `ours`: a flag, or a sub-command and its flag.
std::span<const PeersWord> PeersFlags();
// Sub-commands. `ours`: the words to type behind the program's name.
std::span<const PeersWord> PeersCommands();

// Null where the word is not in the table.
const PeersWord* FindPeersWord(std::span<const PeersWord> table, std::string_view word);

// "did you mean `ours`? (remark)", "not in this version: remark" or "not needed: remark".
std::string HintOf(const PeersWord& peers);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_PEERS_WORDS_H_
