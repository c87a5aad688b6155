#include "trainer/core/check.h"

#include <cstdio>
#include <cstdlib>

namespace fsdp::internal {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  message_ << file << ":" << line << ": broken invariant: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "%s\n", message_.str().c_str());
  std::abort();
}

}  // namespace fsdp::internal
