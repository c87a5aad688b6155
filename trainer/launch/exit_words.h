// The meaning of a rank's exit code or signal: in words, and for a restart.
// Tests: tests/trainer/launch/supervisor_test.cc
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_EXIT_WORDS_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_EXIT_WORDS_H_

#include <string>

namespace fsdp {

std::string SignalName(int number);  // "SIGTERM"; "signal 40" where it has no name.

// ", data": to follow the code; empty where the code says nothing.
std::string Meaning(int code);

// "exit code 4, data"; "killed by SIGKILL" of 128 + 9.
std::string HowItEnded(int code);

// Whether starting the ranks again can help.
bool Restartable(int code);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_EXIT_WORDS_H_
