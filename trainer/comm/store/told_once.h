// One rank says what every rank finds out by itself and would say alike.
// Tests: tests/trainer/comm/together_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_STORE_TOLD_ONCE_H_
#define FSDP_TRAIN_TRAINER_COMM_STORE_TOLD_ONCE_H_

#include <string>

#include "trainer/comm/store/store.h"
#include "trainer/core/errors.h"

namespace fsdp {

// Ends a rank with the exit code of an error that another rank tells: not to be printed.
struct ReportedElsewhere : Error {
  explicit ReportedElsewhere(const Error& error) : Error(error.code(), error.what()) {}
};

// A rank that is about to end with `error` calls it, once for a `name`; other ranks that end with
// an error do the same. True where this rank is the first of those that say the same but for
// numbers (free memory, a port). Ranks that end with ReportedElsewhere do not count. Waits a few
// seconds at most for ranks that may have no error.
bool ClaimReport(Store& store, const std::string& name, int rank, int size, const Error& error);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_STORE_TOLD_ONCE_H_
