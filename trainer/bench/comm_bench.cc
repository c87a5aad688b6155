#include "trainer/bench/comm_bench.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "trainer/comm/nccl/nccl_communicator.h"
#include "trainer/comm/pinned_communicator.h"
#include "trainer/comm/shm/shm_communicator.h"
#include "trainer/comm/store/socket.h"
#include "trainer/comm/store/tcp_store.h"
#include "trainer/comm/thread/thread_communicator.h"
#include "trainer/core/errors.h"
#include "trainer/core/start_thread.h"
#include "trainer/ops/elementwise.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {
namespace {

// A rank waits for the next round as long as whoever asks for rounds lets it.
constexpr double kForever = 1e9;
constexpr Collective kAll[] = {Collective::kAllGather, Collective::kReduceScatter,
                               Collective::kAllReduce, Collective::kAllToAll,
                               Collective::kBroadcast};

using Connect = std::function<std::unique_ptr<Communicator>(Device& device)>;

// Takes a communicator for the host's memory to one for tensors of the device.
std::unique_ptr<Communicator> Over(std::unique_ptr<Communicator> host, Device& device) {
  if (device.type() != DeviceType::kCuda) return host;
  return MakePinnedCommunicator(std::move(host), device);
}

// One rank: its device, stream, communicator and tensors.
class Rank {
 public:
  Rank(const CommBenchOptions& options, int rank, const Connect& connect)
      : options_(options),
        device_(DeviceOf(options, rank)),
        comm_(connect(*device_)),
        a_(device_->Allocate(*std::max_element(options.sizes.begin(), options.sizes.end()))),
        // A reduce-scatter's shard in fp32 is the longest where there is one rank.
        b_(device_->Allocate(a_.bytes() * 4 / SizeOf(options.dtype))),
        flag_(device_->Allocate(4)),
        host_flag_(device_->Allocate(4, MemoryPlace::kPinned)),
        stream_(device_->CreateStream("bench")) {
    for (const Buffer* buffer : {&a_, &b_}) {
      const Shape all{buffer->bytes() / SizeOf(options.dtype)};
      Fill(*stream_, 0, buffer->As(options.dtype, all));
    }
  }

  // Whether rank 0 goes on: the same answer on all ranks.
  bool Agree(bool go_on) {
    const View flag = flag_.As(DType::kInt32, Shape{1}),
               host = host_flag_.As(flag.dtype, flag.shape);
    *host.As<int32_t>() = go_on ? 1 : 0;
    Copy(*stream_, host, flag);
    comm_->Broadcast(*stream_, flag, /*root=*/0);
    Copy(*stream_, flag, host);
    stream_->Synchronize();
    return *host.As<int32_t>() != 0;
  }

  void Abort(const std::string& why) { comm_->Abort(why); }

  std::vector<CommTime> Measure() {
    std::vector<CommTime> times;
    for (const int64_t size : options_.sizes) {
      const int64_t n = size / SizeOf(options_.dtype) / comm_->size();
      const int64_t bytes = n * SizeOf(options_.dtype) * comm_->size();
      const double copy = Time(bytes, [&] { CopyAll(n * comm_->size()); });
      for (const Collective collective : kAll) {
        times.push_back({collective, bytes, Time(bytes, Call(collective, n)), copy});
      }
    }
    return times;
  }

 private:
  static std::unique_ptr<Device> DeviceOf(const CommBenchOptions& options, int rank) {
    const ChosenDevice chosen = ChooseDevice(options.device, rank, options.ranks);
    if (options.transport == CommBenchOptions::Transport::kNccl &&
        (chosen.type != DeviceType::kCuda || chosen.sharers > MostRanksOfAGpu())) {
      throw std::invalid_argument("[bench comm] NCCL wants a GPU for each of " +
                                  std::to_string(options.ranks) + " ranks, and rank " +
                                  std::to_string(rank) + " " +
                                  (chosen.note.empty() ? "has none" : chosen.note));
    }
    return CreateDevice(chosen.type, {.gpu = chosen.gpu});
  }

  // Elements of one tensor into the other.
  void CopyAll(int64_t elements) {
    const View from = a_.As(options_.dtype, Shape{elements}), to = b_.As(from.dtype, from.shape);
    if (device_->type() == DeviceType::kCuda) return Copy(*stream_, from, to);
    std::memcpy(HostAddress(to.data), HostAddress(from.data), static_cast<size_t>(from.bytes()));
  }

  std::function<void()> Call(Collective collective, int64_t n) {
    const View full = a_.As(options_.dtype, Shape{n * comm_->size()});
    const View other = b_.As(options_.dtype, full.shape), part = other.Slice(0, n);
    const View sum = b_.As(DType::kFloat32, Shape{n});
    switch (collective) {
      case Collective::kAllGather:
        return [this, full, part] { comm_->AllGather(*stream_, part, full); };
      case Collective::kReduceScatter:
        return [this, full, sum] { comm_->ReduceScatter(*stream_, full, sum); };
      case Collective::kAllReduce:
        return [this, full] { comm_->AllReduce(*stream_, full); };
      case Collective::kAllToAll:
        return [this, full, other] { comm_->AllToAll(*stream_, full, other); };
      case Collective::kBroadcast:
        return [this, full] { comm_->Broadcast(*stream_, full, /*root=*/0); };
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
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Communicator> comm_;
  const Buffer a_, b_, flag_, host_flag_;
  const std::unique_ptr<Stream> stream_;  // Last: its work reads the above.
};

void RunFirst(Rank& rank, const std::function<bool()>& next,
              const std::function<void(const std::vector<CommTime>&)>& done) {
  while (rank.Agree(next())) done(rank.Measure());
}

void RunOther(Rank& rank) {
  while (rank.Agree(true)) rank.Measure();
}

void MeasureThreads(const CommBenchOptions& options, const std::function<bool()>& next,
                    const std::function<void(const std::vector<CommTime>&)>& done) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (auto& comm : CreateThreadCommunicators(options.ranks, {.timeout_s = kForever})) {
    ranks.push_back(std::make_unique<Rank>(
        options, comm->rank(), [&](Device& device) { return Over(std::move(comm), device); }));
  }
  std::vector<std::jthread> others;
  std::exception_ptr failure;
  try {
    for (int r = 1; r < options.ranks; ++r) {
      others.push_back(StartThread<std::jthread>("the thread of a rank", [&rank = *ranks[r]] {
        try {
          RunOther(rank);
        } catch (const std::exception& error) {
          rank.Abort(error.what());
        }
      }));
    }
    RunFirst(*ranks[0], next, done);
  } catch (const std::exception& error) {
    failure = std::current_exception();
    ranks[0]->Abort(error.what());
  }
  others.clear();
  if (failure) std::rethrow_exception(failure);
}

void MeasureProcesses(const CommBenchOptions& options, const std::function<bool()>& next,
                      const std::function<void(const std::vector<CommTime>&)>& done) {
  const int port = PortOf(Listen("localhost", 0));  // Free a moment ago.
  const auto as_rank = [&](int number, const std::function<void(Rank&)>& run) {
    const auto store = JoinTcpStore("localhost", port, number, options.ranks, /*timeout_s=*/60);
    const RankGroup group = RankGroup::World(number, options.ranks);
    const CommOptions forever{.timeout_s = kForever};
    Rank rank(options, number, [&](Device& device) {
      if (options.transport == CommBenchOptions::Transport::kNccl) {
        return CreateNcclCommunicator(FindNccl(), device, *store, "bench", group,
                                      {.comm = forever, .deterministic = options.deterministic});
      }
      return Over(CreateShmCommunicator(*store, "bench", group, forever), device);
    });
    run(rank);
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
      as_rank(rank, RunOther);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      status = 1;
    }
    _exit(status);  // All else in this process is the parent's.
  }
  std::exception_ptr failure;
  try {
    as_rank(0, [&](Rank& rank) { RunFirst(rank, next, done); });
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
