#include "trainer/data/atomic_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

template <typename Work>
auto OrDataError(Work&& work) {
  try {
    return work();
  } catch (const CheckpointError& error) {
    throw DataError(std::string("tokenize: ") + error.what());
  }
}

}  // namespace

AtomicOutput::AtomicOutput(const std::string& path)
    : file_(OrDataError([&] { return AtomicFile(path); })) {}

void AtomicOutput::Append(std::string_view bytes) {
  OrDataError([&] { file_.Append(bytes); });
}

void AtomicOutput::Overwrite(int64_t offset, std::string_view bytes) {
  OrDataError([&] { file_.Overwrite(offset, bytes); });
}

void AtomicOutput::Commit() {
  OrDataError([&] { file_.Commit(); });
}

void MakeDirectories(const std::string& path) {
  OrDataError([&] { CreateDirectories(path); });
}

FileLock::FileLock(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (!file_.open()) throw DataError("tokenize: " + path + ": " + std::strerror(errno));
}

void FileLock::Touch() { ::futimens(file_.get(), nullptr); }

int64_t FileLock::Touched() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return 0;
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

bool FileLock::Try() {
  const LockResult locked = TryLock(file_, LockMode::kExclusive);
  if (locked == LockResult::kNone) {
    throw DataError("tokenize: " + path_ + ": cannot be locked: " + std::strerror(errno));
  }
  return locked == LockResult::kHeld;
}

}  // namespace fsdp
