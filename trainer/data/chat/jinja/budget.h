// A rendering ends early by these: errors, too much work, a look at what is not there yet.
// Tests: tests/trainer/data/chat/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_BUDGET_H_
#define FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_BUDGET_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "trainer/core/errors.h"

namespace fsdp::jinja {

// An error in words. The renderer adds the template's name and the line.
struct Fault : DataError {
  explicit Fault(const std::string& message) : DataError(message) {}
};

// Why a template that asks for `what` is refused.
std::string NotAmong(const std::string& what);

// Thrown where a template looks at what a list that is still open will have in the end.
struct Observed {};

// Bounds the work of one rendering. One step is a node of the template, an element that is looked
// at, or 32 bytes of a text.
class Budget {
 public:
  Budget(int64_t steps, size_t text_bytes) : left_(steps), steps_(steps), text_(text_bytes) {}
  void Charge(int64_t steps = 1) {
    if ((left_ -= steps) < 0) Exhausted();
  }
  int64_t left() const { return left_; }
  // Items of an open list that may be looked at, because every rendering has them.
  void SetCommon(size_t items) { common_ = items; }
  size_t common() const { return common_; }
  void Text(size_t bytes);             // Before a text of so many bytes is made or looked through.
  void CheckText(size_t bytes) const;  // The same, and charges nothing.

 private:
  [[noreturn]] void Exhausted();
  int64_t left_;
  const int64_t steps_;
  const size_t text_;
  size_t common_ = 0;
};

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_BUDGET_H_
