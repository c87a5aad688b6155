// Files of configs/hardware/ with any numbers.
#ifndef FSDP_TRAIN_TESTS_TESTING_HARDWARE_FILE_H_
#define FSDP_TRAIN_TESTS_TESTING_HARDWARE_FILE_H_

#include <map>
#include <string>
#include <vector>

namespace fsdp::testing {

struct HardwareNumber {
  std::string key;  // With its dots, the key of its map among them.
  double least = 0, most = 0;
  bool whole = false;
};

// Every number that a file can have, by HardwareSchema(). Maps of operations have two: "adamw" and
// "linear_backward".
std::vector<HardwareNumber> HardwareNumbers();

// The YAML of a file with these values, by key, and a source for each. Each stands on a line of its
// own, behind the last part of its key.
std::string HardwareYaml(const std::map<std::string, std::string>& values,
                         const std::string& device = "cuda");

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_HARDWARE_FILE_H_
