// Hints: the known word that a misspelt one was most likely meant to be, and words of other
// programs' recipes (PEFT, transformers' Trainer, TRL, axolotl).
#ifndef FSDP_TRAIN_TRAINER_RECIPE_HINTS_H_
#define FSDP_TRAIN_TRAINER_RECIPE_HINTS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::recipe {

// Edits between two words: insertions, deletions, substitutions and swaps of neighbours, no part
// edited twice (optimal string alignment).
int EditDistance(std::string_view a, std::string_view b);

// The candidate at the least distance, if that is at most a third of the word's letters (always 1);
// else the shortest that holds the word or is held in it, if the held one has 4 letters; else "".
// `-` and `_` are one letter, as are `A` and `a`. The first of equals.
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);

struct PeersWord {
  std::string_view word;    // With its section, where that says which key is meant.
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

#endif  // FSDP_TRAIN_TRAINER_RECIPE_HINTS_H_
