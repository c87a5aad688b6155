#include "trainer/launch/spawn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
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

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::pair<UniqueFd, UniqueFd> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw DeviceError(std::string("cannot make a pipe to a rank: ") + std::strerror(errno));
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

SpawnedProcess Spawn(const std::string& program, const std::vector<std::string>& argv,
                     const std::vector<std::string>& environment,
                     const std::function<void()>& in_child) {
  auto [output, output_end] = MakePipe();
  auto [errors, errors_end] = MakePipe();
  auto [started, started_end] = MakePipe();  // Closed by a successful exec, else errno is in it.
  const UniqueFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<char*> arguments = Pointers(argv);
  const std::vector<char*> variables = Pointers(environment);
  const pid_t parent = getpid();

  const pid_t pid = fork();
  if (pid < 0) throw DeviceError(std::string("cannot start a rank: ") + std::strerror(errno));
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // It ended before the line above.
    in_child();
    if (dup2(nothing.get(), STDIN_FILENO) >= 0 && dup2(output_end.get(), STDOUT_FILENO) >= 0 &&
        dup2(errors_end.get(), STDERR_FILENO) >= 0) {
      execve(program.c_str(), arguments.data(), variables.data());
    }
    const int error = errno;
    [[maybe_unused]] const ssize_t told = write(started_end.get(), &error, sizeof(error));
    _exit(127);
  }
  setpgid(pid, pid);  // Here too: whoever comes first, nobody signals the group before it exists.
  output_end.Close();
  errors_end.Close();
  started_end.Close();

  int error = 0;
  ssize_t bytes;
  do {
    bytes = read(started.get(), &error, sizeof(error));
  } while (bytes < 0 && errno == EINTR);
  if (bytes != 0) {
    waitpid(pid, nullptr, 0);
    throw DeviceError("cannot run " + program + ": " + std::strerror(error));
  }
  fcntl(output.get(), F_SETFL, O_NONBLOCK);
  fcntl(errors.get(), F_SETFL, O_NONBLOCK);
  return {pid, std::move(output), std::move(errors)};
}

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
