#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <thread>

#include "tests/trainer/comm/ranks.h"
#include "trainer/comm/shm/shm_communicator.h"
#include "trainer/comm/store/tcp_store.h"

namespace fsdp::testing {
namespace {

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    Require(pipe(ends) == 0, "pipe");
    read_end = ends[0];
    write_end = ends[1];
  }
};

void WriteAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n <= 0) std::abort();
    done += static_cast<size_t>(n);
  }
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

// A child's life. 'E' or 'R' and a text go to `report`. Through exit(): that is where sanitizers
// report leaks and set their exit status.
[[noreturn]] void Child(const Join& join, int rank, int size, const Body& body, int port_pipe,
                        int report) {
  std::string text;
  try {
    int port = 0;
    Require(read(port_pipe, &port, sizeof(port)) == sizeof(port), "no port");
    const auto store = ConnectTcpStore("127.0.0.1", port, rank, size, /*timeout_s=*/60);
    Rank me{rank, size, store.get(),
            [&](const std::string& name, const RankGroup& group, const CommOptions& options) {
              return join(*store, name, group, options);
            }};
    try {
      text = "R" + body(me);
    } catch (const std::exception& error) {
      store->Fail("rank " + std::to_string(rank) + ": " + error.what());
      throw;
    }
  } catch (const std::exception& error) {
    text = std::string("E") + error.what();
  }
  WriteAll(report, text);
  std::exit(0);
}

// The threads of a process that has begun none: ThreadSanitizer has one of its own.
#ifdef __SANITIZE_THREAD__
constexpr int kOwnThreads = 2;
#else
constexpr int kOwnThreads = 1;
#endif

// Waits for detached threads of an earlier test, such as the fake NCCL's that end a communicator:
// under ThreadSanitizer a child of a process with several threads may start none. They end by
// themselves, so the limit is for a machine that stands still.
void AwaitOtherThreads() {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  for (int ms = 0; ms < 10000 && threads() > kOwnThreads; ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

std::vector<Outcome> RunProcessRanksWith(const Join& join, int size, const Body& body) {
  AwaitOtherThreads();
  std::fflush(nullptr);
  std::vector<pid_t> children(size);
  std::vector<Pipe> ports(size), reports(size);
  for (int r = 0; r < size; ++r) {
    children[r] = fork();
    Require(children[r] >= 0, "fork");
    if (children[r] != 0) continue;
    // Only its own report: the parent reads a pipe to its end, which is when all writers are gone.
    for (int other = 0; other < size; ++other) {
      if (other != r) close(reports[other].write_end);
    }
    Child(join, r, size, body, ports[r].read_end, reports[r].write_end);
  }
  for (const Pipe& report : reports) close(report.write_end);
  auto server = std::make_unique<TcpStoreServer>("127.0.0.1", 0, size, /*join_timeout_s=*/60);
  const int port = server->port();
  for (const Pipe& pipe : ports) {
    WriteAll(pipe.write_end, std::string(reinterpret_cast<const char*>(&port), sizeof(port)));
  }
  std::vector<Outcome> outcomes(size);
  for (int r = 0; r < size; ++r) {
    const std::string report = ReadAll(reports[r].read_end);
    int status = 0;
    waitpid(children[r], &status, 0);
    Outcome& outcome = outcomes[r];
    if (WIFSIGNALED(status)) {
      outcome.error = "signal " + std::to_string(WTERMSIG(status));
    } else if (WEXITSTATUS(status) != 0) {
      outcome.error = "exit status " + std::to_string(WEXITSTATUS(status));
    } else {
      (report.substr(0, 1) == "R" ? outcome.result : outcome.error) = report.substr(1);
    }
    close(reports[r].read_end);
    close(ports[r].read_end);
    close(ports[r].write_end);
  }
  return outcomes;
}

std::vector<Outcome> RunProcessRanks(int size, const Body& body) {
  return RunProcessRanksWith(CreateShmCommunicator, size, body);
}

}  // namespace fsdp::testing
