// Mistakes of YAML texts, for people: every one of them in one exception, each with its place.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_MISTAKES_H_
#define FSDP_TRAIN_TRAINER_RECIPE_MISTAKES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "trainer/recipe/yaml_tree.h"

namespace fsdp::recipe {

// "file:line:column", or the source alone where it has no lines. `sources` by Place::source.
std::string ShowPlace(const Place& place, const std::vector<std::string>& sources);

// ConfigError with a line for each of the first kMostShown, in the order of places; a last line
// says how many more there are.
inline constexpr size_t kMostShown = 1000;
[[noreturn]] void ThrowMistakes(std::vector<RecipeMistake> mistakes,
                                const std::vector<std::string>& sources);

// Appends the contents of a file or a pipe, at most kMostTextBytes, to `text`. Returns why it
// could not, to stand behind the path, or nothing.
std::string ReadTextFile(const std::string& path, std::string& text);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_MISTAKES_H_
