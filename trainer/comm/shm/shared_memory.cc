#include "trainer/comm/shm/shared_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
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

std::string Card::ToString() const {
  return std::to_string(pid) + " " + std::to_string(fd) + " " + words + "\n" + error;
}

Card Card::Parse(const std::string& text) {
  Card card;
  std::istringstream in(text);
  in >> card.pid >> card.fd;
  in.get();
  std::getline(in, card.words);
  std::getline(in, card.error, '\0');
  return card;
}

Card MyCard() {
  Card card;
  card.pid = static_cast<int>(getpid());
  return card;
}

std::string ErrorOf(const std::function<void()>& function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return std::string("U") + error.what();
  } catch (const CommError& error) {
    return std::string("C") + error.what();
  } catch (const DeviceError& error) {
    return std::string("D") + error.what();
  }
  return "";
}

std::vector<Card> ExchangeCards(Store& store, const std::string& key, const std::string& what,
                                const RankGroup& group, const Card& mine) {
  std::vector<Card> cards;
  for (const std::string& text : Exchange(store, key, group, mine.ToString())) {
    cards.push_back(Card::Parse(text));
  }
  for (int r = 0; r < group.size(); ++r) {
    const std::string& error = cards[r].error;
    if (error.empty()) continue;
    const std::string text =
        what + ", rank " + std::to_string(group.NameOf(r)) + ": " + error.substr(1);
    if (error[0] == 'D') throw DeviceError(text);
    if (error[0] == 'U') throw ConfigError(text);
    throw CommError(text);
  }
  return cards;
}

LocalMemory ReachMemory(const RankGroup& group, const std::vector<int>& locals,
                        const std::vector<Card>& cards, const UniqueFd& made, int64_t bytes) {
  LocalMemory memory;
  const int first = locals[0];
  if (group.rank() == first) {
    memory.mapping = std::make_unique<SharedMapping>(made.get(), bytes);
  } else {
    const UniqueFd opened = OpenSharedMemory(cards[first].pid, cards[first].fd, bytes,
                                             "rank " + std::to_string(group.NameOf(first)));
    memory.mapping = std::make_unique<SharedMapping>(opened.get(), bytes);
  }
  for (const int local : locals) {
    memory.peers.push_back(local == group.rank() ? PeerProcess() : PeerProcess(cards[local].pid));
  }
  return memory;
}

}  // namespace fsdp
