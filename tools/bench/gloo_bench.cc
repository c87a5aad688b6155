// Our collectives inside a host against Gloo's own algorithms (TCP over the loopback device), turn
// about in one run:
//   apt install libgloo-dev && bazel run //tools/bench:gloo_bench [-- RANKS ...]
// A size is that of the full tensor (fp32). Each figure is the median over rounds; the ratio is the
// median of the rounds' own ratios, Gloo's time to ours, with the smallest and the largest. Gloo
// has a reduce-scatter only as its older template (ReduceScatterHalvingDoubling), which reduces in
// place.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "trainer/comm/shm/shm_communicator.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/comm/store/socket.h"
#include "trainer/comm/store/tcp_store.h"
#include "trainer/comm/thread/thread_communicator.h"
#include "trainer/runtime/cpu/cpu_device.h"

namespace fsdp {
namespace {

constexpr int64_t kSizes[] = {1 << 20, 64 << 20};
constexpr int kRounds = 7;

class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(fsdp::Store& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.Set(prefix_ + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string text = store_.Get(prefix_ + key);
    return {text.begin(), text.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) store_.Get(prefix_ + key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  fsdp::Store& store_;
  const std::string prefix_;
};

std::shared_ptr<gloo::Context> ConnectGloo(Store& store, int rank, int size) {
  gloo::transport::tcp::attr attributes("127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  GlooStore keys(store, "gloo/" + std::to_string(size) + "/");
  context->connectFullMesh(keys, device);
  return context;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Compare(const char* transport, Communicator& comm, Store& store) {
  const int size = comm.size(), rank = comm.rank();
  const auto context = ConnectGloo(store, rank, size);
  CpuDevice device;
  const auto stream = device.CreateStream("comm");
  const int64_t most = kSizes[std::size(kSizes) - 1];
  const Buffer a = device.Allocate(most), b = device.Allocate(most), c = device.Allocate(4);
  std::memset(a.data(), 0, most);
  std::memset(b.data(), 0, most);
  for (const int64_t bytes : kSizes) {
    const int64_t elements = bytes / 4, n = elements / size;
    const View full = a.As(DType::kFloat32, Shape{elements});
    const View shard = b.As(DType::kFloat32, Shape{n});
    const int calls = bytes > (8 << 20) ? 1 : 20;

    gloo::AllgatherOptions gather(context);
    gather.setInput(shard.As<float>(), static_cast<size_t>(n));
    gather.setOutput(full.As<float>(), static_cast<size_t>(elements));
    gloo::AllreduceOptions reduce(context);
    reduce.setOutput(full.As<float>(), static_cast<size_t>(elements));
    using Sum = void (*)(void*, const void*, const void*, size_t);
    reduce.setReduceFunction(static_cast<Sum>(&gloo::sum<float>));
    gloo::ReduceScatterHalvingDoubling<float> scatter(
        context, {full.As<float>()}, static_cast<int>(elements),
        std::vector<int>(static_cast<size_t>(size), static_cast<int>(n)));

    struct Pair {
      const char* name;
      std::function<void()> ours, theirs;
    };
    const Pair pairs[] = {
        {"all-gather", [&] { comm.AllGather(*stream, shard, full); },
         [&] { gloo::allgather(gather); }},
        {"reduce-scatter", [&] { comm.ReduceScatter(*stream, full, shard); },
         [&] { scatter.run(); }},
        {"all-reduce", [&] { comm.AllReduce(*stream, full); }, [&] { gloo::allreduce(reduce); }},
    };
    for (const Pair& pair : pairs) {
      const auto time = [&](const std::function<void()>& call) {
        comm.AllReduce(*stream, c.As(DType::kFloat32, Shape{1}));  // All begin together.
        stream->Synchronize();
        const double begin = device.Now();
        for (int i = 0; i < calls; ++i) call();
        stream->Synchronize();
        return (device.Now() - begin) / calls;
      };
      std::vector<double> ours, theirs, ratios;
      for (int round = -1; round < kRounds; ++round) {  // The first warms up.
        const double mine = time(pair.ours), other = time(pair.theirs);
        if (round < 0) continue;
        ours.push_back(mine);
        theirs.push_back(other);
        ratios.push_back(other / mine);
      }
      if (rank != 0) continue;
      const auto [least, largest] = std::minmax_element(ratios.begin(), ratios.end());
      std::printf(
          "%-8s %d ranks %3lld MB %-15s %9.0f us %6.2f GB/s   gloo %9.0f us %6.2f GB/s   "
          "%5.2f times as fast (%.2f to %.2f)\n",
          transport, size, static_cast<long long>(bytes >> 20), pair.name, Median(ours) * 1e6,
          bytes / Median(ours) * 1e-9, Median(theirs) * 1e6, bytes / Median(theirs) * 1e-9,
          Median(ratios), *least, *largest);
      std::fflush(stdout);
    }
  }
}

void CompareProcesses(int size) {
  const int port = PortOf(Listen("localhost", 0));  // Free a moment ago.
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        const auto store = JoinTcpStore("localhost", port, rank, size, /*timeout_s=*/60);
        const auto comm = CreateShmCommunicator(*store, "bench", RankGroup::World(rank, size));
        Compare("shm", *comm, *store);
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

void CompareThreads(int size) {
  MemoryStore store(/*timeout_s=*/60);
  const auto group = CreateThreadCommunicators(size);
  std::vector<std::thread> ranks;
  for (const auto& comm : group) {
    ranks.emplace_back([&] { Compare("threads", *comm, store); });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  std::vector<int> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {2, 4};
  for (const int size : sizes) fsdp::CompareProcesses(size);  // Forks: before there are threads.
  for (const int size : sizes) fsdp::CompareThreads(size);
}
