// Paths as a shell reads and writes them.
// Tests: tests/trainer/core/paths_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_PATHS_H_
#define FSDP_TRAIN_TRAINER_CORE_PATHS_H_

#include <string>

namespace fsdp {

// Puts a home directory in the place of a leading `~` (the user's own: $HOME, or that of the
// password file) or `~name`. As in a shell, the name of nobody is left as it is, and so is a `~`
// anywhere else. Returns why there is no such directory; empty: it is done.
std::string ExpandHome(std::string& path);

// `text` as one word of a shell: a path that begins with `-` is no flag.
std::string ShellWord(const std::string& text);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_PATHS_H_
