#include "trainer/launch/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "trainer/core/errors.h"

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

}  // namespace fsdp
