#include "trainer/launch/process_scope.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/launch/stop_signal.h"

namespace fsdp {
namespace {

// The children of this process, from the fourth field of /proc/<pid>/stat. Zombies too.
std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  DIR* directory = opendir("/proc");
  if (directory == nullptr) return children;
  while (const dirent* entry = readdir(directory)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    std::string line;
    std::getline(std::ifstream("/proc/" + std::string(entry->d_name) + "/stat"), line);
    const size_t name_end = line.rfind(") ");  // A name may hold anything, ')' included.
    if (name_end == std::string::npos || line.size() < name_end + 5) continue;
    if (std::atoi(line.c_str() + name_end + 4) == getpid()) children.push_back(pid);
  }
  closedir(directory);
  return children;
}

}  // namespace

ProcessScope::ProcessScope(rlim_t files) {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd >= 0) close(fd);

  sigemptyset(&handled_);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD}) {
    sigaddset(&handled_, number);
  }
  struct sigaction hangup;
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&handled_, SIGHUP);  // Else started by nohup.
  signals_ = UniqueFd(signalfd(-1, &handled_, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.open()) {
    throw DeviceError(std::string("cannot read signals: ") + std::strerror(errno));
  }
  sigprocmask(SIG_BLOCK, &handled_, &previous_mask_);
  struct sigaction action = {};
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, &previous_pipe_);
  action.sa_handler = SIG_DFL;  // Inherited as ignored, the kernel would reap children unseen.
  sigaction(SIGCHLD, &action, &previous_child_);
  prctl(PR_GET_CHILD_SUBREAPER, &previous_subreaper_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  getrlimit(RLIMIT_NOFILE, &previous_files_);
  rlimit raised = previous_files_;
  raised.rlim_cur = std::max(raised.rlim_cur, std::min(files, raised.rlim_max));
  setrlimit(RLIMIT_NOFILE, &raised);
}

ProcessScope::~ProcessScope() {
  signalfd_siginfo unread;
  while (read(signals_.get(), &unread, sizeof(unread)) > 0) {
  }
  setrlimit(RLIMIT_NOFILE, &previous_files_);
  prctl(PR_SET_CHILD_SUBREAPER, previous_subreaper_);
  sigaction(SIGCHLD, &previous_child_, nullptr);
  sigaction(SIGPIPE, &previous_pipe_, nullptr);
  sigprocmask(SIG_SETMASK, &previous_mask_, nullptr);
}

void ProcessScope::RestoreInChild() const {
  setrlimit(RLIMIT_NOFILE, &previous_files_);
  sigaction(SIGCHLD, &previous_child_, nullptr);
  sigaction(SIGPIPE, &previous_pipe_, nullptr);
  sigprocmask(SIG_SETMASK, &previous_mask_, nullptr);
  HoldStopSignals();
}

void EndChildren() {
  for (;;) {
    pid_t reaped;
    do {
      reaped = waitpid(-1, nullptr, WNOHANG);
    } while (reaped > 0);
    if (reaped < 0) return;  // No children.
    // Each that ends may leave us children of its own: look again after every one.
    for (const pid_t child : Children()) kill(child, SIGKILL);
    siginfo_t info;
    waitid(P_ALL, 0, &info, WEXITED | WNOWAIT);
  }
}

}  // namespace fsdp
