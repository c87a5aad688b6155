#include "trainer/observe/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;

[[noreturn]] void Fail(const std::string& path, const char* what, int error) {
  throw CheckpointError(path + ": " + what + ": " + std::strerror(error));
}

}  // namespace

std::optional<AppendFile> AppendFile::Create(const std::string& path) {
  const int fd = ::open(path.c_str(), kFlags | O_EXCL, 0666);
  if (fd < 0 && errno == EEXIST) return std::nullopt;
  if (fd < 0) Fail(path, "cannot be created", errno);
  return AppendFile(path, fd);
}

AppendFile AppendFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), kFlags, 0666);
  if (fd < 0) Fail(path, "cannot be written", errno);
  return AppendFile(path, fd);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

void AppendFile::Write(std::string_view record) {
  size_t done = 0;
  while (done < record.size()) {
    const ssize_t n = ::write(fd_, record.data() + done, record.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      const off_t end = ::lseek(fd_, 0, SEEK_END);
      if (done > 0 && ::ftruncate(fd_, end - static_cast<off_t>(done)) != 0) {
        Fail(path_, "cannot be written, and ends in half a record", error);
      }
      Fail(path_, "cannot be written", error);
    }
    done += static_cast<size_t>(n);
  }
}

void AppendFile::Sync() {
  if (::fsync(fd_) != 0) Fail(path_, "cannot be synced", errno);
}

}  // namespace fsdp
