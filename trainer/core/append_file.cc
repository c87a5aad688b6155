#include "trainer/core/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
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

// Before it is opened: a pipe would wait for a reader.
void RefuseWhatIsNoFile(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    throw CheckpointError(path + ": is no file: records must be there to be read again");
  }
}

}  // namespace

std::optional<AppendFile> AppendFile::Create(const std::string& path) {
  UniqueFd file(::open(path.c_str(), kFlags | O_EXCL, 0666));
  if (!file.open() && errno == EEXIST) return std::nullopt;
  if (!file.open()) Fail(path, "cannot be created", errno);
  return AppendFile(path, std::move(file));
}

AppendFile AppendFile::Open(const std::string& path) {
  RefuseWhatIsNoFile(path);
  UniqueFd file(::open(path.c_str(), kFlags, 0666));
  if (!file.open()) Fail(path, "cannot be written", errno);
  return AppendFile(path, std::move(file));
}

AppendFile::AppendFile(std::string path, UniqueFd file)
    : path_(std::move(path)), file_(std::move(file)) {
  struct stat status;
  if (::fstat(file_.get(), &status) == 0) bytes_ = status.st_size;
}

void AppendFile::CheckIsThere() const {
  struct stat held, named;
  if (::fstat(file_.get(), &held) != 0) Fail(path_, "cannot be looked at", errno);
  if (::stat(path_.c_str(), &named) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) Fail(path_, "cannot be looked at", errno);
    throw CheckpointError(path_ +
                          ": is gone: it was removed or renamed while it was written, and what "
                          "it held is no longer there");
  }
  if (held.st_dev != named.st_dev || held.st_ino != named.st_ino) {
    throw CheckpointError(path_ +
                          ": is another file by now: it was replaced while it was written, and "
                          "what it held is no longer there");
  }
  if (held.st_size < bytes_) {
    throw CheckpointError(path_ + ": has " + std::to_string(held.st_size) + " bytes, of " +
                          std::to_string(bytes_) +
                          " that were written: it was cut while it was written");
  }
}

void AppendFile::Write(std::string_view record) {
  CheckIsThere();
  size_t done = 0;
  while (done < record.size()) {
    const ssize_t n = ::write(file_.get(), record.data() + done, record.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      const off_t end = ::lseek(file_.get(), 0, SEEK_END);
      if (done > 0 && ::ftruncate(file_.get(), end - static_cast<off_t>(done)) != 0) {
        Fail(path_, "cannot be written, and ends in half a record", error);
      }
      Fail(path_, "cannot be written", error);
    }
    done += static_cast<size_t>(n);
  }
  bytes_ += static_cast<int64_t>(record.size());
}

void AppendFile::Sync() {
  CheckIsThere();
  if (::fsync(file_.get()) != 0) Fail(path_, "cannot be synced", errno);
}

}  // namespace fsdp
