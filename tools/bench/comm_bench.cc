// Rates of all-gather and reduce-scatter of the CPU transports, those between hosts over the
// loopback device:
//   bazel run //tools/bench:comm_bench [-- SPINS]      (CommOptions::spins)
// A size is that of the full tensor, a rate is size / time, so that it reads as a step does: how
// soon is a unit of that size there. Calls are enqueued in batches, so a stream's hand-over to its
// worker is not in it; the median of the batches counts.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "trainer/comm/hosts/hosts_communicator.h"
#include "trainer/comm/shm/shm_communicator.h"
#include "trainer/comm/socket.h"
#include "trainer/comm/tcp_store.h"
#include "trainer/comm/thread/thread_communicator.h"
#include "trainer/runtime/cpu/cpu_device.h"

namespace fsdp {
namespace {

constexpr int64_t kSizes[] = {1 << 10, 16 << 10, 64 << 10, 512 << 10, 4 << 20, 16 << 20, 64 << 20};
constexpr int kBatches = 9;

void Measure(const char* transport, Communicator& comm) {
  CpuDevice device;
  const auto stream = device.CreateStream("comm");
  const Buffer a = device.Allocate(kSizes[std::size(kSizes) - 1]);
  const Buffer b = device.Allocate(kSizes[std::size(kSizes) - 1]);
  for (const int64_t bytes : kSizes) {
    const int64_t elements = bytes / 4, n = elements / comm.size();
    const View full = a.As(DType::kFloat32, Shape{elements}),
               shard = b.As(DType::kFloat32, Shape{n});
    const int calls = static_cast<int>(std::clamp<int64_t>((64 << 20) / bytes, 2, 1000));
    const auto time = [&](const std::function<void()>& call) {
      std::vector<double> seconds;
      for (int batch = -1; batch < kBatches; ++batch) {  // The first warms up.
        const double begin = device.Now();
        for (int i = 0; i < calls; ++i) call();
        stream->Synchronize();
        if (batch >= 0) seconds.push_back((device.Now() - begin) / calls);
      }
      std::nth_element(seconds.begin(), seconds.begin() + kBatches / 2, seconds.end());
      return seconds[kBatches / 2];
    };
    const double gather = time([&] { comm.AllGather(*stream, shard, full); });
    const double reduce = time([&] { comm.ReduceScatter(*stream, full, shard); });
    if (comm.rank() != 0) continue;
    std::printf("%-8s %5d %9lld KB %10.1f us %6.2f GB/s %10.1f us %6.2f GB/s\n", transport,
                comm.size(), static_cast<long long>(bytes >> 10), gather * 1e6,
                bytes / gather * 1e-9, reduce * 1e6, bytes / reduce * 1e-9);
    std::fflush(stdout);
  }
}

// Two hosts of neighbouring ranks, by the loopback device.
std::unique_ptr<Communicator> JoinTwoHosts(Store& store, const std::string& name,
                                           const RankGroup& group, const CommOptions& options) {
  const int size = group.size();
  std::vector<int> host;
  for (int r = 0; r < size; ++r) host.push_back(2 * r / size);
  return CreateHostsCommunicator(store, name, group, HostPlacement(host), "127.0.0.1", options);
}

void MeasureThreads(int size, const CommOptions& options) {
  const auto group = CreateThreadCommunicators(size, options);
  std::vector<std::thread> ranks;
  for (const auto& comm : group) {
    ranks.emplace_back([&comm] { Measure("threads", *comm); });
  }
  for (std::thread& rank : ranks) rank.join();
}

using Join = std::function<std::unique_ptr<Communicator>(
    Store& store, const std::string& name, const RankGroup& group, const CommOptions&)>;

void MeasureProcesses(const char* transport, const Join& join, int size,
                      const CommOptions& options) {
  const int port = PortOf(Listen("localhost", 0));  // Free a moment ago.
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        const auto store = JoinTcpStore("localhost", port, rank, size, /*timeout_s=*/60);
        const auto comm = join(*store, "bench", RankGroup::World(rank, size), options);
        Measure(transport, *comm);
        Barrier(*store, "end", rank, size);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        std::exit(1);
      }
      std::exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  fsdp::CommOptions options;
  if (argc > 1) options.spins = std::atoi(argv[1]);
  std::printf("%-8s %5s %12s %24s %25s\n", "", "ranks", "full tensor", "all-gather",
              "reduce-scatter");
  std::fflush(stdout);
  for (const int size : {2, 4}) {
    // Forks: before there are threads.
    fsdp::MeasureProcesses("shm", fsdp::CreateShmCommunicator, size, options);
    fsdp::MeasureProcesses("gloo", fsdp::CreateGlooCommunicator, size, options);
    if (size == 4) fsdp::MeasureProcesses("2 hosts", fsdp::JoinTwoHosts, size, options);
  }
  for (const int size : {2, 4}) {
    fsdp::MeasureThreads(size, options);
  }
}
