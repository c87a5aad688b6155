// Libraries that a program looks for when it runs, not when it is linked: those of GPUs are larger
// than all the rest together, and most hosts have none.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_SHARED_LIBRARY_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_SHARED_LIBRARY_H_

#include <string>

namespace fsdp {

struct FoundLibrary {
  std::string path;   // Empty: it is not there.
  std::string error;  // Then what the loader says.
};

// Loads it, as ld.so searches (LD_LIBRARY_PATH, ld.so.cache), and keeps it.
FoundLibrary FindLibrary(const std::string& file);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_SHARED_LIBRARY_H_
