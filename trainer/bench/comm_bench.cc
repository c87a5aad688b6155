#include "trainer/bench/comm_bench.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "trainer/comm/shm/shm_communicator.h"
#include "trainer/comm/socket.h"
#include "trainer/comm/tcp_store.h"
#include "trainer/comm/thread/thread_communicator.h"
#include "trainer/core/errors.h"
#include "trainer/runtime/device_factory.h"

namespace fsdp {
namespace {

// A rank waits for the next round as long as whoever asks for rounds lets it.
constexpr double kForever = 1e9;
constexpr Collective kAll[] = {Collective::kAllGather, Collective::kReduceScatter,
                               Collective::kAllReduce, Collective::kAllToAll,
                               Collective::kBroadcast};

// One rank: its stream, communicator and tensors.
class Rank {
 public:
  Rank(const CommBenchOptions& options, Communicator& comm)
      : options_(options),
        comm_(comm),
        stream_(device_->CreateStream("bench")),
        a_(device_->Allocate(*std::max_element(options.sizes.begin(), options.sizes.end()))),
        // A reduce-scatter's shard in fp32 is the longest where there is one rank.
        b_(device_->Allocate(a_.bytes() * 4 / SizeOf(options.dtype))),
        flag_(device_->Allocate(4, MemoryPlace::kPinned)) {
    for (const Buffer* buffer : {&a_, &b_}) {
      std::memset(HostAddress(buffer->data()), 0, buffer->bytes());
    }
  }

  // Whether rank 0 goes on: the same answer on all ranks.
  bool Agree(bool go_on) {
    *flag_.As(DType::kInt32, Shape{1}).As<int32_t>() = go_on ? 1 : 0;
    comm_.Broadcast(*stream_, flag_.As(DType::kInt32, Shape{1}), /*root=*/0);
    stream_->Synchronize();
    return *flag_.As(DType::kInt32, Shape{1}).As<int32_t>() != 0;
  }

  std::vector<CommTime> Measure() {
    std::vector<CommTime> times;
    for (const int64_t size : options_.sizes) {
      const int64_t n = size / SizeOf(options_.dtype) / comm_.size();
      const int64_t bytes = n * SizeOf(options_.dtype) * comm_.size();
      const double copy = Time(bytes, [&] {
        std::memcpy(HostAddress(b_.data()), HostAddress(a_.data()), static_cast<size_t>(bytes));
      });
      for (const Collective collective : kAll) {
        times.push_back({collective, bytes, Time(bytes, Call(collective, n)), copy});
      }
    }
    return times;
  }

 private:
  std::function<void()> Call(Collective collective, int64_t n) {
    const View full = a_.As(options_.dtype, Shape{n * comm_.size()});
    const View other = b_.As(options_.dtype, full.shape), part = other.Slice(0, n);
    const View sum = b_.As(DType::kFloat32, Shape{n});
    switch (collective) {
      case Collective::kAllGather:
        return [this, full, part] { comm_.AllGather(*stream_, part, full); };
      case Collective::kReduceScatter:
        return [this, full, sum] { comm_.ReduceScatter(*stream_, full, sum); };
      case Collective::kAllReduce:
        return [this, full] { comm_.AllReduce(*stream_, full); };
      case Collective::kAllToAll:
        return [this, full, other] { comm_.AllToAll(*stream_, full, other); };
      case Collective::kBroadcast:
        return [this, full] { comm_.Broadcast(*stream_, full, /*root=*/0); };
    }
    return nullptr;
  }

  // The median batch, a call. Calls are enqueued in batches, so a stream's hand-over to its worker
  // is not in it. All ranks begin together.
  double Time(int64_t bytes, const std::function<void()>& call) {
    const int calls =
        static_cast<int>(std::clamp<int64_t>((int64_t{16} << 20) / bytes, 1, options_.max_calls));
    std::vector<double> seconds;
    for (int batch = -1; batch < options_.batches; ++batch) {  // The first warms up.
      Agree(true);
      const double begin = device_->Now();
      for (int i = 0; i < calls; ++i) call();
      stream_->Synchronize();
      if (batch >= 0) seconds.push_back((device_->Now() - begin) / calls);
    }
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    return seconds[seconds.size() / 2];
  }

  const CommBenchOptions& options_;
  Communicator& comm_;
  const std::unique_ptr<Device> device_ = CreateDevice(DeviceType::kCpu);
  const std::unique_ptr<Stream> stream_;
  const Buffer a_, b_, flag_;
};

void RunFirst(const CommBenchOptions& options, Communicator& comm,
              const std::function<bool()>& next,
              const std::function<void(const std::vector<CommTime>&)>& done) {
  Rank rank(options, comm);
  while (rank.Agree(next())) done(rank.Measure());
}

void RunOther(const CommBenchOptions& options, Communicator& comm) {
  Rank rank(options, comm);
  while (rank.Agree(true)) rank.Measure();
}

void MeasureThreads(const CommBenchOptions& options, const std::function<bool()>& next,
                    const std::function<void(const std::vector<CommTime>&)>& done) {
  const auto group = CreateThreadCommunicators(options.ranks, {.timeout_s = kForever});
  std::vector<std::thread> others;
  for (int r = 1; r < options.ranks; ++r) {
    others.emplace_back([&options, comm = group[r].get()] {
      try {
        RunOther(options, *comm);
      } catch (const std::exception& error) {
        comm->Abort(error.what());
      }
    });
  }
  std::exception_ptr failure;
  try {
    RunFirst(options, *group[0], next, done);
  } catch (const std::exception& error) {
    failure = std::current_exception();
    group[0]->Abort(error.what());
  }
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

void MeasureProcesses(const CommBenchOptions& options, const std::function<bool()>& next,
                      const std::function<void(const std::vector<CommTime>&)>& done) {
  const int port = PortOf(Listen("localhost", 0));  // Free a moment ago.
  const auto with_communicator = [&](int rank, const std::function<void(Communicator&)>& run) {
    const auto store = JoinTcpStore("localhost", port, rank, options.ranks, /*timeout_s=*/60);
    const auto comm = CreateShmCommunicator(*store, "bench", RankGroup::World(rank, options.ranks),
                                            {.timeout_s = kForever});
    run(*comm);
  };
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (int rank = 1; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) throw DeviceError("bench comm: cannot start rank " + std::to_string(rank));
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int status = 0;
    try {
      with_communicator(rank, [&](Communicator& comm) { RunOther(options, comm); });
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      status = 1;
    }
    _exit(status);  // What else this process was forked with is the parent's.
  }
  std::exception_ptr failure;
  try {
    with_communicator(0, [&](Communicator& comm) { RunFirst(options, comm, next, done); });
  } catch (...) {
    failure = std::current_exception();
    for (const pid_t child : children) kill(child, SIGKILL);
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void MeasureCollectives(const CommBenchOptions& options, const std::function<bool()>& next,
                        const std::function<void(const std::vector<CommTime>&)>& done) {
  if (options.sizes.empty()) throw std::invalid_argument("[bench comm] there are no sizes");
  if (options.dtype != DType::kFloat32 && options.dtype != DType::kBFloat16 &&
      options.dtype != DType::kFloat16) {
    throw std::invalid_argument("[bench comm] " + std::string(Name(options.dtype)) +
                                ", want fp32, bf16 or fp16");
  }
  const int64_t element = SizeOf(options.dtype);
  for (const int64_t size : options.sizes) {
    if (size >= element * options.ranks) continue;
    throw std::invalid_argument("[bench comm] a size is " + std::to_string(size) +
                                " bytes, want at least " + std::to_string(element) +
                                " for each of " + std::to_string(options.ranks) + " ranks");
  }
  if (options.transport == CommBenchOptions::Transport::kThread) {
    MeasureThreads(options, next, done);
  } else {
    MeasureProcesses(options, next, done);
  }
}

}  // namespace fsdp
