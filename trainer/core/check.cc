#include "trainer/core/check.h"

#include <cstdio>
#include <cstdlib>

namespace fsdp::internal {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  *this << file << ":" << line << ": broken invariant: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "%s\n", message_.c_str());
  std::abort();
}

CheckFailure& CheckFailure::operator<<(std::string_view text) {
  message_ += text;
  return *this;
}

CheckFailure& CheckFailure::operator<<(char character) {
  message_ += character;
  return *this;
}

CheckFailure& CheckFailure::operator<<(bool value) { return *this << (value ? "true" : "false"); }

CheckFailure& CheckFailure::operator<<(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.17g", value);
  return *this << digits;
}

CheckFailure& CheckFailure::operator<<(const void* pointer) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%p", pointer);
  return *this << digits;
}

}  // namespace fsdp::internal
