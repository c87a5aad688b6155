// A test that changes the environment's variables leaves them as they were.
#ifndef FSDP_TRAIN_TESTS_TESTING_KEPT_ENVIRONMENT_H_
#define FSDP_TRAIN_TESTS_TESTING_KEPT_ENVIRONMENT_H_

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace fsdp::testing {

class KeptEnvironment {
 public:
  KeptEnvironment() {
    for (char** variable = environ; *variable != nullptr; ++variable) before_.push_back(*variable);
  }
  ~KeptEnvironment() {
    ::clearenv();
    for (const std::string& variable : before_) {
      const size_t equals = variable.find('=');
      ::setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
    }
  }
  KeptEnvironment(const KeptEnvironment&) = delete;
  KeptEnvironment& operator=(const KeptEnvironment&) = delete;

 private:
  std::vector<std::string> before_;  // "NAME=value".
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_KEPT_ENVIRONMENT_H_
