#ifndef FSDP_TRAIN_TESTS_TESTING_ERROR_OF_H_
#define FSDP_TRAIN_TESTS_TESTING_ERROR_OF_H_

#include <string>
#include <utility>

#include "trainer/core/errors.h"

namespace fsdp::testing {

// Returns the words of the Error that the call throws, or `otherwise`. Passes other errors on.
template <typename Error = CheckpointError, typename Call>
std::string ErrorOf(const Call& call, std::string otherwise = "") {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return otherwise;
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_ERROR_OF_H_
