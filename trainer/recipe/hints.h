// Other programs' values of our keys (core/peers_words.h has their keys).
#ifndef FSDP_TRAIN_TRAINER_RECIPE_HINTS_H_
#define FSDP_TRAIN_TRAINER_RECIPE_HINTS_H_

#include <span>
#include <string_view>

namespace fsdp::recipe {

struct PeersValue {
  std::string_view key;   // Our key, whole.
  std::string_view word;  // Other programs' value.
  std::string_view ours;  // Our value for it.
};

// None of the words is a value of ours.
std::span<const PeersValue> PeersValues();
// Ignores case; empty where the word is not in the list.
std::string_view FindPeersValue(std::string_view key, std::string_view word);

// The map to write where other programs have this scalar as the value of `key`; empty where the
// table has none.
std::string_view FindPeersScalar(std::string_view key, std::string_view scalar);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_HINTS_H_
