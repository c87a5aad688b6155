#include "trainer/observe/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

[[noreturn]] void Fail(const std::string& path, const char* what) {
  throw CheckpointError(path + ": " + what + ": " + std::strerror(errno));
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : fd_(::open(path.c_str(), flags, 0666)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

void WriteAndSync(const std::string& path, std::string_view contents) {
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
  if (file.get() < 0) Fail(path, "cannot be written");
  while (!contents.empty()) {
    const ssize_t n = ::write(file.get(), contents.data(), contents.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Fail(path, "cannot be written");
    contents.remove_prefix(static_cast<size_t>(n));
  }
  if (::fsync(file.get()) != 0) Fail(path, "cannot be synced");
}

}  // namespace

void WriteWholeFile(const std::string& path, std::string_view contents) {
  const std::string temporary = path + ".tmp";
  try {
    WriteAndSync(temporary, contents);
    if (std::rename(temporary.c_str(), path.c_str()) != 0) Fail(path, "cannot be replaced");
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const std::string parent = std::filesystem::path(path).parent_path();
  const Descriptor directory(parent.empty() ? "." : parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory.get() < 0 || ::fsync(directory.get()) != 0) Fail(parent, "cannot be synced");
}

std::string ReadWholeFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream contents;
  if (file) contents << file.rdbuf();
  // An empty file sets failbit on the output; badbit is the disk's.
  if (!file || file.bad()) Fail(path, "cannot be read");
  return std::move(contents).str();
}

}  // namespace fsdp
