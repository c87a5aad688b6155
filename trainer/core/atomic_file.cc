#include "trainer/core/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"

namespace fsdp {

LockResult TryLock(const UniqueFd& file, LockMode mode) {
  const int operation = (mode == LockMode::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB;
  while (::flock(file.get(), operation) != 0) {
    if (errno == EWOULDBLOCK) return LockResult::kBusy;
    if (errno != EINTR) return LockResult::kNone;
  }
  return LockResult::kHeld;
}

namespace {

namespace fs = std::filesystem;

[[noreturn]] void Fail(const std::string& path, const char* what) {
  throw CheckpointError(path + ": " + what + ": " + std::strerror(errno));
}

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Where a file of this name lies, or would: the end of a chain of links, be it there or not.
std::string FollowLinks(const std::string& path) {
  constexpr int kMostLinks = 40;  // As in the kernel.
  fs::path at = path;
  for (int i = 0; i < kMostLinks; ++i) {
    struct stat status;
    if (::lstat(at.c_str(), &status) != 0 || !S_ISLNK(status.st_mode)) return at;
    std::error_code error;
    at = at.parent_path() / fs::read_symlink(at, error);
    if (error) throw CheckpointError(path + ": cannot be followed: " + error.message());
  }
  errno = ELOOP;
  Fail(path, "cannot be written");
}

// The lock of who writes there; held until the descriptor is closed. False where another has it. A
// file system without locks has no two writers to tell apart.
bool Lock(const UniqueFd& file) { return TryLock(file, LockMode::kExclusive) != LockResult::kBusy; }

bool IsStillThere(int fd, const std::string& path) {
  struct stat held, named;
  return ::fstat(fd, &held) == 0 && ::lstat(path.c_str(), &named) == 0 && SameFile(held, named);
}

// Removes the file that a process that died has left here.
void RemoveAbandoned(const std::string& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) return;
  if (!S_ISREG(status.st_mode)) {
    throw CheckpointError(path + ": is in the way, and no file that was left here: remove it");
  }
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) {
    if (errno == ENOENT) return;
    Fail(path, "is in the way and cannot be opened");
  }
  if (!Lock(file)) throw CheckpointError(path + ": is being written by another process");
  if (IsStillThere(file.get(), path) && ::unlink(path.c_str()) != 0)
    Fail(path, "cannot be removed");
}

// A new file, locked.
UniqueFd OpenBeside(const std::string& path, const std::string& temporary) {
  for (;;) {
    UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.get() >= 0) {
      // Or somebody took it for abandoned before it was locked.
      if (Lock(file) && IsStillThere(file.get(), temporary)) return file;
    } else if (errno == EEXIST) {
      RemoveAbandoned(temporary);
    } else {
      Fail(path, "cannot be written");
    }
  }
}

// Something has that name.
void RequireDirectory(const std::string& path) {
  struct stat status;
  const bool known = ::stat(path.c_str(), &status) == 0;
  if (known && S_ISDIR(status.st_mode)) return;
  if (known) errno = ENOTDIR;
  if (errno == ENOENT) {
    throw CheckpointError(path + ": cannot be made: it is a link that leads nowhere");
  }
  Fail(path, "cannot be made");
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path, WriteTo to) : path_(path) {
  struct stat there, followed;
  const bool exists = ::stat(path.c_str(), &there) == 0;
  const bool flows = exists && (S_ISCHR(there.st_mode) || S_ISFIFO(there.st_mode));
  if (exists && !S_ISREG(there.st_mode) && !(flows && to == WriteTo::kPipeToo)) {
    throw CheckpointError(path + ": is " +
                          (S_ISDIR(there.st_mode)    ? "a directory"
                           : S_ISBLK(there.st_mode)  ? "a block device"
                           : S_ISCHR(there.st_mode)  ? "a device"
                           : S_ISFIFO(there.st_mode) ? "a pipe"
                                                     : "a socket") +
                          (flows ? ", not a file: remove it" : ": give the name of a file"));
  }
  path_ = FollowLinks(path);
  // A link of /proc may name what has no name.
  const bool is_file = exists && S_ISREG(there.st_mode) && ::lstat(path_.c_str(), &followed) == 0 &&
                       SameFile(there, followed);
  if (!exists || is_file) {
    temporary_ = path_ + kUnfinishedSuffix;
    file_ = OpenBeside(path_, temporary_);
  } else {
    path_ = path;
    file_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_TRUNC | O_NOCTTY | O_CLOEXEC));
    if (!file_.open()) Fail(path_, "cannot be written");
  }
}

AtomicFile::~AtomicFile() {
  if (file_.open() && !temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Fail(path_, "cannot be written");
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void AtomicFile::Overwrite(int64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(file_.get(), bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Fail(path_, "cannot be written");
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
}

void AtomicFile::Commit() {
  if (!temporary_.empty()) {
    // Some file systems say only here that the disk is full.
    if (::fsync(file_.get()) != 0) Fail(path_, "cannot be synced");
    // While it is locked: nobody takes it for abandoned.
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) Fail(path_, "cannot be replaced");
  }
  if (::close(file_.Release()) != 0 && temporary_.empty()) Fail(path_, "cannot be written");
  if (temporary_.empty()) return;
  const std::string parent = fs::path(path_).parent_path();
  SyncDirectory(parent.empty() ? "." : parent);
}

void WriteAtomicFile(const std::string& path, std::string_view contents, WriteTo to) {
  AtomicFile file(path, to);
  file.Append(contents);
  file.Commit();
}

void RemoveUnfinished(const std::string& path) {
  try {
    RemoveAbandoned(FollowLinks(path) + kUnfinishedSuffix);
  } catch (const CheckpointError&) {
  }
}

std::string ReadWholeFile(const std::string& path, int64_t most_bytes) {
  FileText read = ReadFileText(path, most_bytes);
  if (read.why.empty()) return std::move(read.text);
  throw CheckpointError(path + ": " + (read.error == 0 ? "" : "cannot be read: ") + read.why);
}

void SyncDirectory(const std::string& path) {
  const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: a file system that has no such thing.
  if (directory.get() < 0 || (::fsync(directory.get()) != 0 && errno != EINVAL)) {
    Fail(path, "cannot be synced");
  }
}

void CreateDirectories(const std::string& path) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  fs::path at = path;
  if (!at.has_filename()) at = at.parent_path();  // It ended in a slash.
  for (; !at.empty() && !fs::exists(at, ignored); at = at.parent_path()) missing.push_back(at);
  for (; !missing.empty(); missing.pop_back()) {
    const fs::path& directory = missing.back();
    if (::mkdir(directory.c_str(), 0777) != 0 && errno != EEXIST) Fail(path, "cannot be made");
    RequireDirectory(directory);
    const std::string parent = directory.parent_path();
    SyncDirectory(parent.empty() ? "." : parent);
  }
  RequireDirectory(path);
}

}  // namespace fsdp
