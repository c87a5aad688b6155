#include "trainer/data/whole_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

// 0, or errno.
int WriteAll(int fd, std::string_view bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = offset < 0 ? ::write(fd, bytes.data(), bytes.size())
                                 : ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(n));
    if (offset >= 0) offset += n;
  }
  return 0;
}

}  // namespace

WholeOutput::WholeOutput(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) Fail(errno);
}

WholeOutput::~WholeOutput() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void WholeOutput::Fail(int error) const {
  throw DataError("tokenize: " + path_ + ": " + std::strerror(error));
}

void WholeOutput::Append(std::string_view bytes) {
  if (const int error = WriteAll(fd_, bytes, -1); error != 0) Fail(error);
}

void WholeOutput::Overwrite(int64_t offset, std::string_view bytes) {
  if (const int error = WriteAll(fd_, bytes, offset); error != 0) Fail(error);
}

void WholeOutput::Commit() {
  // Some file systems say only here that the disk is full.
  if (::fsync(fd_) != 0) Fail(errno);
  const int fd = std::exchange(fd_, -1);
  int error = ::close(fd) != 0 ? errno : 0;
  if (error == 0 && std::rename(temporary_.c_str(), path_.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary_.c_str());
    Fail(error);
  }
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  const int directory = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_CLOEXEC);
  if (directory < 0) Fail(errno);
  error = ::fsync(directory) != 0 && errno != EINVAL ? errno : 0;  // EINVAL: it has no sync.
  ::close(directory);
  if (error != 0) Fail(error);
}

void MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw DataError("tokenize: " + path + ": " + error.message());
}

FileLock::FileLock(const std::string& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw DataError("tokenize: " + path + ": " + std::strerror(errno));
}

FileLock::~FileLock() { ::close(fd_); }

void FileLock::Touch() { ::futimens(fd_, nullptr); }

int64_t FileLock::Touched() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) return 0;
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

bool FileLock::Try() {
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) {
      throw DataError("tokenize: " + path_ + ": cannot be locked: " + std::strerror(errno));
    }
  }
  return true;
}

}  // namespace fsdp
