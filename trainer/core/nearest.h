// The known word that a misspelt one was most likely meant to be.
#ifndef FSDP_TRAIN_TRAINER_CORE_NEAREST_H_
#define FSDP_TRAIN_TRAINER_CORE_NEAREST_H_

#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Edits between two words: insertions, deletions, substitutions and swaps of neighbours, no part
// edited twice (optimal string alignment).
int EditDistance(std::string_view a, std::string_view b);

// The candidate at the least distance, if that is at most a third of the word's letters (always 1);
// else "". `-` and `_` are one letter, as are `A` and `a`. The first of equals.
std::string NearestSpelling(std::string_view word, const std::vector<std::string>& candidates);

// The same; where there is none, the shortest candidate that holds the word or is held in it, if
// the held one has 4 letters.
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_NEAREST_H_
