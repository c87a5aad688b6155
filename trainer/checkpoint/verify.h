// Finds the damages of a checkpoint: reads every byte, and compares its files and their headers
// with the manifest.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_VERIFY_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_VERIFY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint_directory.h"

namespace fsdp {

struct Damage {
  std::string file;                  // The file's path.
  int64_t begin = 0, end = 0;        // Bytes of the file; equal where the whole file is wrong.
  std::vector<std::string> touches;  // The contents there: "master of h.0.attn.c_attn.weight".
  std::string reason;                // In words.
};

struct VerifyReport {
  int files = 0;
  int64_t bytes = 0, chunks = 0;  // All files but the manifest.
  std::vector<Damage> damages;    // Empty: every byte is as it was written.
  // The path no longer leads to the checkpoint: it was moved or removed meanwhile. The held
  // directory is read all the same.
  bool moved = false;
  // Files were missing because of that, and were not judged.
  bool gone = false;
};

// Reads every file. Compares its size, every chunk's checksum and the tensors of its header (names,
// dtypes, shapes, places) with the manifest, and the manifest's step with a directory's name
// step_<n>. Goes on after a damage, to report all.
// Holds one chunk, 64 MiB at most, and one header. `progress` (bytes done, of all) may be null.
// Throws CheckpointError where the manifest itself is missing or damaged: nothing can be judged
// then.
VerifyReport VerifyCheckpoint(const CheckpointHold& directory,
                              const std::function<void(int64_t done, int64_t total)>& progress);

std::string ToString(const Damage& damage);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_VERIFY_H_
