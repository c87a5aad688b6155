// How long ranks take to find each other, as processes:
//   bazel run //tools/bench:store_bench [-- CLIENTS]          (512 without)
// Rank 0 serves; all of them join, exchange a value, and leave. The times are those from the first
// fork to the last rank's news, so the forks are in the first one.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "trainer/comm/socket.h"
#include "trainer/comm/tcp_store.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

// A rank writes this into the pipe when it has reached a stage.
struct News {
  int stage = 0;  // 0: joined, 1: exchanged, -1: failed.
};

void Run(int rank, int size, int port, int news) {
  const auto tell = [news](int stage) {
    const News told{stage};
    if (write(news, &told, sizeof(told)) != sizeof(told)) std::abort();
  };
  try {
    const auto store = JoinTcpStore("localhost", port, rank, size, /*timeout_s=*/120, {"bench", 0});
    tell(0);
    Exchange(*store, "bench", rank, size, std::string(100, 'v'));
    tell(1);
    Barrier(*store, "end", rank, size);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    tell(-1);
  }
}

int Measure(int size) {
  const int port = PortOf(Listen("localhost", 0));  // Free a moment ago.
  int news[2];
  if (pipe(news) != 0) return 1;
  const auto begin = Clock::now();
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child < 0) return std::perror("fork"), 1;
    if (child == 0) {
      close(news[0]);
      Run(rank, size, port, news[1]);
      std::_Exit(0);
    }
  }
  close(news[1]);
  int count[2] = {0, 0}, failed = 0;
  double at_s[2] = {0, 0};
  for (News told; read(news[0], &told, sizeof(told)) == sizeof(told);) {
    if (told.stage < 0) {
      ++failed;
    } else if (++count[told.stage] == size) {
      at_s[told.stage] = std::chrono::duration<double>(Clock::now() - begin).count();
    }
  }
  while (wait(nullptr) > 0) {
  }
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  if (failed > 0) return std::fprintf(stderr, "%d of %d failed\n", failed, size), 1;
  std::printf("%d processes: all joined %.2f s after the first fork, all values exchanged %.2f s\n",
              size, at_s[0], at_s[1]);
  std::printf("largest process: %.1f MiB resident\n", static_cast<double>(usage.ru_maxrss) / 1024);
  return 0;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Measure(argc > 1 ? std::atoi(argv[1]) : 512); }
