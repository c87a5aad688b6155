// Our own broken invariants. A trainer in a wrong state must not write a checkpoint, so these
// abort, in every build, after printing the condition, both values and what was streamed in.
#ifndef FSDP_TRAIN_TRAINER_CORE_CHECK_H_
#define FSDP_TRAIN_TRAINER_CORE_CHECK_H_

#include <sstream>

namespace fsdp::internal {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

}  // namespace fsdp::internal

#define FSDP_CHECK(condition) \
  while (!(condition)) ::fsdp::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define FSDP_CHECK_OP_(a, op, b)                                                 \
  while (!((a)op(b)))                                                            \
  ::fsdp::internal::CheckFailure(__FILE__, __LINE__, #a " " #op " " #b).stream() \
      << "(" << (a) << " and " << (b) << ") "

#define FSDP_CHECK_EQ(a, b) FSDP_CHECK_OP_(a, ==, b)
#define FSDP_CHECK_LE(a, b) FSDP_CHECK_OP_(a, <=, b)
#define FSDP_CHECK_LT(a, b) FSDP_CHECK_OP_(a, <, b)

#endif  // FSDP_TRAIN_TRAINER_CORE_CHECK_H_
