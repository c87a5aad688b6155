#undef _FORTIFY_SOURCE  // Its inline functions have the names of ours.
#include "tests/testing/file_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

namespace fsdp::testing {
namespace {

using Kind = FileCall::Kind;

struct Watch {
  std::string root;
  std::function<Answer(const FileCall&)> answer;
  std::function<void(const FileCall&)> done;
  std::map<int, std::string> open;  // Paths by descriptor.

  bool Sees(std::string_view path) const {
    return path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/');
  }
};

std::recursive_mutex mutex;  // Guards all below, and puts the calls of threads in an order.
Watch* watch = nullptr;
thread_local bool inside = false;  // A call of the watcher's own.

// Does `real`, which returns what the call does, as the watcher wishes; `call` is null for a call
// that nobody watches.
template <typename Real>
auto Do(FileCall* call, const Real& real) {
  if (call == nullptr) return real(false);
  inside = true;
  const Answer answer = watch->answer ? watch->answer(*call) : Answer();
  inside = false;
  if (answer.error != 0) {
    errno = answer.error;
    return decltype(real(false))(-1);
  }
  const auto result = real(answer.half);
  if (result < 0) return result;
  if (call->kind == Kind::kOpen) {
    call->fd = static_cast<int>(result);
    watch->open[call->fd] = call->path;
  }
  if (call->kind == Kind::kWrite) call->bytes = call->bytes.substr(0, static_cast<size_t>(result));
  const int error = errno;
  inside = true;
  if (watch->done) watch->done(*call);
  inside = false;
  errno = error;
  return result;
}

bool SeesPath(const char* path) {
  return watch != nullptr && !inside && path != nullptr && watch->Sees(path);
}

template <typename Real>
auto DoOnPath(FileCall call, const Real& real) {
  const std::lock_guard lock(mutex);
  const bool seen = SeesPath(call.path.c_str());
  return Do(seen ? &call : nullptr, real);
}

template <typename Real>
auto DoOnDescriptor(FileCall call, const Real& real) {
  const std::lock_guard lock(mutex);
  const bool seen = watch != nullptr && !inside && watch->open.contains(call.fd);
  if (seen) call.path = watch->open.at(call.fd);
  return Do(seen ? &call : nullptr, real);
}

}  // namespace

const char* NameOf(Kind kind) {
  constexpr const char* kNames[] = {"open",  "write",  "resize",   "sync",  "close",
                                    "mkdir", "rename", "exchange", "unlink"};
  return kNames[static_cast<int>(kind)];
}

FileWatch::FileWatch(std::string root, std::function<Answer(const FileCall&)> answer,
                     std::function<void(const FileCall&)> done) {
  const std::lock_guard lock(mutex);
  if (watch != nullptr) std::abort();
  watch = new Watch{std::move(root), std::move(answer), std::move(done), {}};
}

FileWatch::~FileWatch() {
  const std::lock_guard lock(mutex);
  delete std::exchange(watch, nullptr);
}

}  // namespace fsdp::testing

using fsdp::testing::DoOnDescriptor;
using fsdp::testing::DoOnPath;
using fsdp::testing::FileCall;
using Kind = fsdp::testing::FileCall::Kind;

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  struct stat status;
  const bool creates = (flags & O_CREAT) != 0 && ::lstat(path, &status) != 0;
  return DoOnPath(
      {.kind = Kind::kOpen, .path = path, .creates = creates, .empties = (flags & O_TRUNC) != 0},
      [&](bool) { return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode)); });
}

// Below a directory that was opened by the call above; others are seen by nobody.
int openat(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  const auto real = [&](bool) {
    return static_cast<int>(syscall(SYS_openat, directory, path, flags, mode));
  };
  const std::lock_guard lock(fsdp::testing::mutex);
  const auto* watch = fsdp::testing::watch;
  if (watch == nullptr || !watch->open.contains(directory)) return real(false);
  return DoOnPath({.kind = Kind::kOpen, .path = watch->open.at(directory) + "/" + path}, real);
}

ssize_t write(int fd, const void* data, size_t bytes) {
  return DoOnDescriptor(
      {.kind = Kind::kWrite,
       .fd = fd,
       .offset = -1,
       .bytes = {static_cast<const char*>(data), bytes}},
      [&](bool half) {
        return static_cast<ssize_t>(syscall(SYS_write, fd, data, half ? (bytes + 1) / 2 : bytes));
      });
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return DoOnDescriptor({.kind = Kind::kWrite,
                         .fd = fd,
                         .offset = offset,
                         .bytes = {static_cast<const char*>(data), bytes}},
                        [&](bool half) {
                          return static_cast<ssize_t>(syscall(
                              SYS_pwrite64, fd, data, half ? (bytes + 1) / 2 : bytes, offset));
                        });
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
  return DoOnDescriptor({.kind = Kind::kResize, .fd = fd, .size = offset + length}, [&](bool) {
    return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, length));
  });
}

int ftruncate(int fd, off_t length) noexcept {
  return DoOnDescriptor({.kind = Kind::kResize, .fd = fd, .size = length},
                        [&](bool) { return static_cast<int>(syscall(SYS_ftruncate, fd, length)); });
}

int fsync(int fd) {
  const bool watched = [&] {
    const std::lock_guard lock(fsdp::testing::mutex);
    return fsdp::testing::watch != nullptr && fsdp::testing::watch->open.contains(fd);
  }();
  return DoOnDescriptor({.kind = Kind::kSync, .fd = fd}, [&](bool) {
    return watched ? 0 : static_cast<int>(syscall(SYS_fsync, fd));
  });
}

int close(int fd) {
  const std::lock_guard lock(fsdp::testing::mutex);
  const int result = DoOnDescriptor({.kind = Kind::kClose, .fd = fd},
                                    [&](bool) { return static_cast<int>(syscall(SYS_close, fd)); });
  if (fsdp::testing::watch != nullptr && fsdp::testing::watch->open.erase(fd) > 0 && result != 0) {
    const int error = errno;  // It reports an error, and is closed all the same.
    syscall(SYS_close, fd);
    errno = error;
  }
  return result;
}

int mkdir(const char* path, mode_t mode) noexcept {
  return DoOnPath({.kind = Kind::kMkdir, .path = path},
                  [&](bool) { return static_cast<int>(syscall(SYS_mkdir, path, mode)); });
}

int rename(const char* from, const char* to) noexcept {
  return DoOnPath({.kind = Kind::kRename, .path = from, .to = to},
                  [&](bool) { return static_cast<int>(syscall(SYS_rename, from, to)); });
}

int renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) noexcept {
  const Kind kind = (flags & RENAME_EXCHANGE) != 0 ? Kind::kExchange : Kind::kRename;
  return DoOnPath({.kind = kind, .path = from, .to = to}, [&](bool) {
    return static_cast<int>(syscall(SYS_renameat2, from_dir, from, to_dir, to, flags));
  });
}

int unlink(const char* path) noexcept {
  return DoOnPath({.kind = Kind::kUnlink, .path = path},
                  [&](bool) { return static_cast<int>(syscall(SYS_unlink, path)); });
}

int rmdir(const char* path) noexcept {
  return DoOnPath({.kind = Kind::kUnlink, .path = path},
                  [&](bool) { return static_cast<int>(syscall(SYS_rmdir, path)); });
}

}  // extern "C"
