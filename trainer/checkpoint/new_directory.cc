#include "trainer/checkpoint/new_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void Fail(const std::string& path, const char* what) {
  throw CheckpointError(path + ": cannot be " + what + ": " + std::strerror(errno));
}

[[noreturn]] void RefuseExisting(const std::string& path) {
  throw CheckpointError(path + ": is there already, and is not overwritten");
}

std::string Normal(const std::string& path) {
  std::string text = fs::path(path).lexically_normal();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

bool Exists(const std::string& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0;
}

}  // namespace

NewDirectory::NewDirectory(const std::string& path)
    : path_(Normal(path)), temporary_(path_ + kUnfinishedSuffix) {
  if (Exists(path_)) RefuseExisting(path_);
  const std::string parent = fs::path(path_).parent_path();
  std::error_code error;
  if (!parent.empty()) CreateDirectories(parent);
  if (::mkdir(temporary_.c_str(), 0777) != 0 && errno != EEXIST) Fail(temporary_, "made");
  lock_ = UniqueFd(::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (lock_.get() < 0) Fail(temporary_, "opened");
  const LockResult locked = TryLock(lock_, LockMode::kExclusive);
  if (locked == LockResult::kBusy) {
    throw CheckpointError(temporary_ + ": is being written by another process");
  }
  if (locked == LockResult::kNone) Fail(temporary_, "locked");
  for (const auto& entry : fs::directory_iterator(temporary_, error)) {
    std::error_code failed;
    fs::remove_all(entry.path(), failed);
    if (failed)
      throw CheckpointError(entry.path().string() + ": cannot be removed: " + failed.message());
  }
}

NewDirectory::~NewDirectory() {
  if (!published_) RemoveTemporary();
}

void NewDirectory::RemoveTemporary() noexcept {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void NewDirectory::Write(const std::string& name, std::string_view contents) const {
  const fs::path path = fs::path(temporary_) / name;
  CreateDirectories(path.parent_path());
  WriteAtomicFile(path, contents);
}

void NewDirectory::Publish() {
  if (::fsync(lock_.get()) != 0) Fail(temporary_, "synced");
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) != 0) {
    if (errno == EEXIST) RefuseExisting(path_);
    // A file system that knows no such rename. A plain one replaces an empty directory at most.
    if (errno != EINVAL && errno != ENOSYS) Fail(temporary_, "renamed");
    if (Exists(path_)) RefuseExisting(path_);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) Fail(temporary_, "renamed");
  }
  published_ = true;
  const std::string parent = fs::path(path_).parent_path();
  SyncDirectory(parent.empty() ? "." : parent);
}

}  // namespace fsdp
