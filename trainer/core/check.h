// Our own broken invariants. A trainer in a wrong state must not write a checkpoint, so these
// abort, in every build, after printing the condition, both values and what was streamed in.
#ifndef FSDP_TRAIN_TRAINER_CORE_CHECK_H_
#define FSDP_TRAIN_TRAINER_CORE_CHECK_H_

#include <concepts>
#include <string>
#include <string_view>

namespace fsdp::internal {

// Not a std::ostream: nearly every file checks something, and streams are a tenth of its compile
// time.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();

  CheckFailure& operator<<(std::string_view text);
  CheckFailure& operator<<(char character);
  CheckFailure& operator<<(bool value);
  CheckFailure& operator<<(double value);
  CheckFailure& operator<<(const void* pointer);
  CheckFailure& operator<<(const char* text) { return *this << std::string_view(text); }
  CheckFailure& operator<<(const std::string& text) { return *this << std::string_view(text); }
  template <std::integral T>
  CheckFailure& operator<<(T value) {
    return *this << std::string_view(std::to_string(value));
  }

 private:
  std::string message_;
};

}  // namespace fsdp::internal

#define FSDP_CHECK(condition) \
  while (!(condition)) ::fsdp::internal::CheckFailure(__FILE__, __LINE__, #condition)

#define FSDP_CHECK_OP_(a, op, b)                                        \
  while (!((a)op(b)))                                                   \
  ::fsdp::internal::CheckFailure(__FILE__, __LINE__, #a " " #op " " #b) \
      << "(" << (a) << " and " << (b) << ") "

#define FSDP_CHECK_EQ(a, b) FSDP_CHECK_OP_(a, ==, b)
#define FSDP_CHECK_LE(a, b) FSDP_CHECK_OP_(a, <=, b)
#define FSDP_CHECK_LT(a, b) FSDP_CHECK_OP_(a, <, b)

#endif  // FSDP_TRAIN_TRAINER_CORE_CHECK_H_
