#include "trainer/comm/shm/shared_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

std::string Errno(int error) { return std::generic_category().message(error); }

// Names the limit, too.
[[noreturn]] void Refuse(const std::string& what, int error) {
  const std::string text = what + ": " + Errno(error);
  if (error == ENOMEM) throw MemoryError(text + ": see ulimit -v and the control group's limit");
  throw DeviceError(text + (error == EFBIG ? ": to ulimit -f it is a file" : ""));
}

}  // namespace

SharedMapping::SharedMapping(int fd, int64_t bytes) : bytes_(bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    Refuse("cannot map " + std::to_string(bytes) + " bytes of shared memory", errno);
  }
  data_ = static_cast<std::byte*>(data);
}

SharedMapping::~SharedMapping() { munmap(data_, bytes_); }

UniqueFd MakeSharedMemory(int64_t bytes) {
  UniqueFd fd(memfd_create("fsdp-train", MFD_CLOEXEC));
  int error = fd.get() < 0 ? errno : ftruncate(fd.get(), bytes) != 0 ? errno : 0;
  if (error == 0) error = posix_fallocate(fd.get(), 0, bytes);
  if (error != 0) {
    Refuse("cannot get " + std::to_string(bytes) + " bytes of shared memory", error);
  }
  return fd;
}

UniqueFd OpenSharedMemory(int pid, int remote_fd, int64_t bytes, const std::string& owner) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(remote_fd);
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) {
    throw DeviceError("cannot open the shared memory of " + owner + " at " + path + ": " +
                      Errno(errno));
  }
  struct stat status {};
  if (fstat(fd.get(), &status) != 0 || status.st_size != bytes) {
    throw DeviceError("the shared memory of " + owner + " at " + path + " has " +
                      std::to_string(status.st_size) + " bytes, want " + std::to_string(bytes));
  }
  return fd;
}

std::string ProcessSpace() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat space {};
  stat("/proc/self/ns/pid", &space);
  return boot + "/" + std::to_string(space.st_ino);
}

PeerProcess::PeerProcess(int pid)
    : pid_(pid), pidfd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {
  if (pidfd_.get() < 0 && errno != ESRCH) {
    throw DeviceError("cannot watch process " + std::to_string(pid) +
                      " (pidfd_open, Linux 5.3): " + Errno(errno));
  }
}

bool PeerProcess::HasEnded() const {
  pollfd waits{pidfd_.get(), POLLIN, 0};  // Readable once the process has ended.
  return pidfd_.get() < 0 || poll(&waits, 1, 0) > 0;
}

}  // namespace fsdp
