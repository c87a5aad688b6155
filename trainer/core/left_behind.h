// Threads inside a library that does not return. They are left to themselves, so the process ends
// by _exit: what main() destroys would be destroyed beside them.
// Tests: tests/trainer/core/left_behind_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_LEFT_BEHIND_H_
#define FSDP_TRAIN_TRAINER_CORE_LEFT_BEHIND_H_

#include <functional>

namespace fsdp {

// Whether any has been left behind. Any thread may ask.
bool AnyLeftBehind();
// Counts a thread that somebody else waits for no longer.
void CountLeftBehind();

// Runs end() on a thread of its own, and leaves it behind where it takes longer than `patience_s`.
void EndWithin(double patience_s, std::function<void()> end);

// The last words of main(): returns `code`, or, with a thread left behind, flushes what stdio has
// and ends the process with `code`.
int ExitBeside(int code);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_LEFT_BEHIND_H_
