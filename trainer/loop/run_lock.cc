#include "trainer/loop/run_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "trainer/core/errors.h"
#include "trainer/observe/provenance.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

// The holder's words in the file: "process 4711 on node-1, started 2026-11-22T01:02:03Z".
std::string ReadHolder(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));  // Opened anew: NFS looks again.
  char text[1024];
  const ssize_t length = file.open() ? pread(file.get(), text, sizeof(text), 0) : -1;
  return length > 0 ? std::string(text, static_cast<size_t>(length))
                    : "a process that has not yet said who it is";
}

}  // namespace

RunLock::RunLock(const std::string& directory, std::chrono::milliseconds patience,
                 const std::function<bool()>& stop) {
  const std::string path = directory + "/.lock";
  file_ = UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file_.open()) {
    throw CheckpointError(path + ": cannot be written: " + std::strerror(errno));
  }
  const auto deadline = Clock::now() + patience;
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  while (fcntl(file_.get(), F_OFD_SETLK, &whole) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EACCES) {
      missing_ = std::strerror(errno);
      return;
    }
    if (Clock::now() >= deadline || (stop && stop())) {
      throw CheckpointError(directory +
                            ": another job trains in this directory: " + ReadHolder(path) +
                            ". Wait for its end, or give this one another run.name or run.dir");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const std::string holder = "process " + std::to_string(getpid()) + " on " + DescribeHost().name +
                             ", started " + UtcNow();
  // Only those who come second need the words: the lock counts without them, on a full disk too.
  if (ftruncate(file_.get(), 0) == 0 &&
      pwrite(file_.get(), holder.data(), holder.size(), 0) == static_cast<ssize_t>(holder.size())) {
    fdatasync(file_.get());  // To the other hosts.
  }
}

RunLock::~RunLock() {
  // Nobody is to be sent to a process that has ended.
  if (missing_.empty()) [[maybe_unused]]
    const int emptied = ftruncate(file_.get(), 0);
}

}  // namespace fsdp
