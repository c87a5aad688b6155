// What is wrong with a checkpoint: every byte of it is read, and what its files say of themselves
// is held against the manifest.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_VERIFY_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_VERIFY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint_hold.h"

namespace fsdp {

struct Damage {
  std::string file;                  // Its path.
  int64_t begin = 0, end = 0;        // Bytes of the file; the same where the file itself is wrong.
  std::vector<std::string> touches;  // "master of h.0.attn.c_attn.weight"; what lies there.
  std::string reason;                // In words.
};

struct VerifyReport {
  int files = 0;
  int64_t bytes = 0, chunks = 0;  // Of all files but the manifest.
  std::vector<Damage> damages;    // Empty: every byte is as it was written.
  // The path no longer leads to the checkpoint: it was moved or removed meanwhile. What is held is
  // read all the same.
  bool moved = false;
  // So files were missing, and were not judged.
  bool gone = false;
};

// Reads every file and holds its size, every chunk's checksum and the tensors of its header (names,
// dtypes, shapes, places) against the manifest, and the manifest's step against a directory's name
// step_<n>. Goes on after a damage: all of them are reported.
// Holds one chunk, 64 MiB at most, and one header. `progress` (bytes done, of all) may be null.
// Throws CheckpointError where the manifest itself is missing or damaged: nothing else can be
// judged then.
VerifyReport VerifyCheckpoint(const CheckpointHold& directory,
                              const std::function<void(int64_t done, int64_t total)>& progress);

std::string ToString(const Damage& damage);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_VERIFY_H_
