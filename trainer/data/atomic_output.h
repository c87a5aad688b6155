// Files of tokens, complete or not there.
// Tests: tests/trainer/data/text/tokenize_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_ATOMIC_OUTPUT_H_
#define FSDP_TRAIN_TRAINER_DATA_ATOMIC_OUTPUT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "trainer/core/atomic_file.h"
#include "trainer/core/unique_fd.h"

namespace fsdp {

// A AtomicFile whose errors are DataErrors: "tokenize: ", path and reason.
class AtomicOutput {
 public:
  explicit AtomicOutput(const std::string& path);

  void Append(std::string_view bytes);
  void Overwrite(int64_t offset, std::string_view bytes);
  void Commit();

 private:
  AtomicFile file_;
};

// Makes the directory and all above it.
void MakeDirectories(const std::string& path);  // Throws DataError.

// A lock between processes, on a file that stays (core/atomic_file.h).
class FileLock {
 public:
  explicit FileLock(const std::string& path);  // Makes the file. Throws DataError.

  // Touch(): the lock's owner says that it is busy. Touched(): changes when it has said so, for
  // those that wait.
  void Touch();
  int64_t Touched() const;  // Nanoseconds of somebody's clock.

  bool Try();  // False while another has it. Throws DataError where the file system has no locks.

 private:
  std::string path_;
  UniqueFd file_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_ATOMIC_OUTPUT_H_
