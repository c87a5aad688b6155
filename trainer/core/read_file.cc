#include "trainer/core/read_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

constexpr int64_t kBlock = 256 << 10;
constexpr int kPatienceMs = 5000;

struct Opened {
  UniqueFd file;
  int64_t bytes = 0;
  bool regular = false;
  std::string why;
  int error = 0;
};

Opened Refused(int error) { return {UniqueFd(), 0, false, std::strerror(error), error}; }

Opened Open(int directory, const std::string& path, ReadFrom from) {
  constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  UniqueFd file(directory == AT_FDCWD ? ::open(path.c_str(), kFlags)
                                      : ::openat(directory, path.c_str(), kFlags));
  const auto no_file = [](const char* what) {
    return Opened{UniqueFd(), 0, false, std::string("is ") + what + ", not a file", 0};
  };
  if (!file.open()) return errno == ENXIO ? no_file("a socket") : Refused(errno);
  struct stat status;
  if (::fstat(file.get(), &status) != 0) return Refused(errno);
  const mode_t mode = status.st_mode;
  if (S_ISDIR(mode)) return Refused(EISDIR);
  if (S_ISREG(mode)) return {std::move(file), status.st_size, true, "", 0};
  const bool flows = S_ISFIFO(mode) || S_ISCHR(mode);
  if (flows && from == ReadFrom::kPipeToo) return {std::move(file), 0, false, "", 0};
  return no_file(S_ISFIFO(mode) ? "a pipe" : "a device");
}

// Bytes to read at once: a small file takes little memory, also in the middle of training.
int64_t BlockFor(const Opened& opened) {
  return opened.regular ? std::clamp(opened.bytes + 1, int64_t{512}, kBlock) : kBlock;
}

// read(), which waits where there is a pipe's writer or a terminal to wait for. `begun`: something
// has been read before. EPIPE: nobody has come to write.
ssize_t ReadSome(int fd, char* to, size_t bytes, bool begun) {
  pollfd ready{fd, POLLIN, 0};
  bool silent = !begun && ::poll(&ready, 1, kPatienceMs) == 0;
  for (;;) {
    const ssize_t n = ::read(fd, to, bytes);
    if (n == 0 && silent) return errno = EPIPE, -1;
    if (n >= 0 || (errno != EINTR && errno != EAGAIN)) return n;
    silent = false;
    if (errno == EAGAIN) ::poll(&ready, 1, -1);
  }
}

FileText ReadOpened(const Opened& opened, int64_t most_bytes) {
  if (!opened.file.open()) return {"", opened.why, opened.error};
  const std::string most = std::to_string(most_bytes);
  if (opened.bytes > most_bytes) {
    return {"", "has " + std::to_string(opened.bytes) + " bytes, the most is " + most};
  }
  std::string text;
  if (most_bytes != kAnySize) text.reserve(static_cast<size_t>(opened.bytes) + 1);
  std::vector<char> block(static_cast<size_t>(BlockFor(opened)));
  for (;;) {
    // A byte more than there may be: it tells a file that has grown.
    const int64_t left = std::min(std::ssize(block) - 1, most_bytes - std::ssize(text)) + 1;
    const ssize_t n = ReadSome(opened.file.get(), block.data(), static_cast<size_t>(left),
                               opened.regular || !text.empty());
    if (n < 0 && errno == EPIPE) return {"", "is a pipe that nobody writes to"};
    if (n < 0) {
      const int error = errno;
      return {"", std::strerror(error), error};
    }
    if (n == 0 && text.empty() && !opened.regular) {
      return {"", "is empty: nothing was written to it, or it has been read before"};
    }
    if (n == 0) return {std::move(text)};
    const std::string_view more(block.data(), static_cast<size_t>(n));
    if (n > most_bytes - std::ssize(text)) return {"", "has more than " + most + " bytes"};
    if (most_bytes == kAnySize && more.find('\0') != std::string_view::npos) {
      const size_t at = text.size() + more.find('\0');
      return {"", "is damaged: byte " + std::to_string(at) + " is zero, and it is a text"};
    }
    text += more;
  }
}

}  // namespace

bool IsLfsPointer(std::string_view begin) {
  return begin.starts_with("version https://git-lfs.github.com/spec/");
}

bool PathExists(const std::string& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0;
}

FileText ReadFileText(const std::string& path, int64_t most_bytes, ReadFrom from) {
  return ReadOpened(Open(AT_FDCWD, path, from), most_bytes);
}

FileText ReadFileTextAt(int directory, const std::string& path, int64_t most_bytes) {
  return ReadOpened(Open(directory, path, ReadFrom::kFile), most_bytes);
}

FileBlocks::FileBlocks(const std::string& path) : path_(path), block_(kBlock) {
  Opened opened = Open(AT_FDCWD, path, ReadFrom::kFile);
  if (!opened.file.open()) {
    throw CheckpointError(path + ": " + (opened.error == 0 ? "" : "cannot be read: ") + opened.why);
  }
  file_ = std::move(opened.file);
  bytes_ = opened.bytes;
}

std::string_view FileBlocks::Next() {
  skipped_ = 0;
  ssize_t n = 0;
  do {
    n = ::pread(file_.get(), block_.data(), block_.size(), at_);
  } while (n < 0 && errno == EINTR);
  if (n < 0) throw CheckpointError(path_ + ": cannot be read: " + std::strerror(errno));
  at_ += n;
  const std::string_view block(block_.data(), static_cast<size_t>(n));
  if (n > 0 && block.find_first_not_of('\0') == std::string_view::npos) {
    const off_t data = ::lseek(file_.get(), at_, SEEK_DATA);
    const off_t next = data < 0 && errno == ENXIO ? std::max(at_, bytes_) : std::max(at_, data);
    skipped_ = next - at_;
    at_ = next;
  }
  return block;
}

void ReadAhead(int64_t size, int64_t block, const BlockStep& read, const BlockStep& use) {
  const auto count = [&](int64_t begin) { return std::min(block, size - begin); };
  if (size > 0) read(0, 0, count(0));
  int buffer = 0;
  for (int64_t begin = 0; begin < size; begin += block, buffer = 1 - buffer) {
    std::future<void> ahead;  // Waits where it ends.
    if (const int64_t next = begin + block; next < size) {
      ahead = std::async(std::launch::async, std::cref(read), 1 - buffer, next, count(next));
    }
    use(buffer, begin, count(begin));
    if (ahead.valid()) ahead.get();
  }
}

}  // namespace fsdp
