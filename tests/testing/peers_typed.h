// The words that people type who come from other trainers: tests/fixtures/peers_words/words.txt.
#ifndef FSDP_TRAIN_TESTS_TESTING_PEERS_TYPED_H_
#define FSDP_TRAIN_TESTS_TESTING_PEERS_TYPED_H_

#include <fstream>
#include <string>
#include <vector>

namespace fsdp::testing {

struct PeersTyped {
  std::string trainer, typed, expected;
  bool is_command;  // `typed` stands behind the program's name. Otherwise it is a line of a recipe.

  // Whether a message says so.
  bool IsIn(const std::string& message) const {
    const bool is_name = expected.find_first_of(" {") == std::string::npos;
    const std::string end = expected.ends_with("=") ? "" : "`";
    return message.find(is_name ? "`" + expected + end : expected) != std::string::npos;
  }
};

inline std::vector<PeersTyped> ReadPeersTyped() {
  std::ifstream file("tests/fixtures/peers_words/words.txt");
  std::vector<PeersTyped> all;
  std::string trainer;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '[') {
      trainer = line.substr(1, line.size() - 2);
      continue;
    }
    const size_t arrow = line.rfind(" => ");
    const bool is_command = line.starts_with("$ ");
    all.push_back({trainer, line.substr(is_command ? 2 : 0, arrow - (is_command ? 2 : 0)),
                   line.substr(arrow + 4), is_command});
  }
  return all;
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_PEERS_TYPED_H_
