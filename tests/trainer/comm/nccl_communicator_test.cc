// NCCL's communicators on GPUs of an emulated machine, over a fake of NCCL
// (tests/emulated/nccl.cc).
#include "trainer/comm/nccl/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <future>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include "tests/emulated/cudart.h"
#include "tests/trainer/comm/communicator_suite.h"
#include "trainer/core/errors.h"
#include "trainer/core/left_behind.h"
#include "trainer/runtime/cuda/cuda_device.h"
#include "trainer/runtime/operation.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp::testing {
namespace {

constexpr int kGpus = 8;

// The library of profilers' ranges begins with its first one, by one thread alone.
void UseGpus(EmulatedGpus gpus) {
  gpus.count = kGpus;
  ResetEmulatedGpus(gpus);
  static const bool once [[maybe_unused]] = [] {
    Operation operation;
    operation.kernels.cuda = [](CudaStreamHandle) {};
    CreateCudaDevice({})->CreateStream("first")->Enqueue(std::move(operation));
    return true;
  }();
}

// The calls of a step, which a run tries first.
const std::vector<Communicator::Size> kStep = {
    {Collective::kAllGather, DType::kFloat32, DType::kFloat32, 1000},
    {Collective::kReduceScatter, DType::kFloat32, DType::kFloat32, 1000},
    {Collective::kReduceScatter, DType::kBFloat16, DType::kFloat32, 1000},
    {Collective::kAllReduce, DType::kFloat32, DType::kFloat32, 2000},
};

// Rank r has GPU r, but for those above `last_gpu`, which have that.
Body OnNccl(const Body& body, const NcclOptions& options, int last_gpu = kGpus) {
  return [=](Rank& rank) {
    rank.device = CreateCudaDevice({.gpu = std::min(rank.rank, last_gpu)});
    rank.join_group = [&rank, options](const std::string& name, const RankGroup& group,
                                       const CommOptions& comm) {
      NcclOptions own = options;
      own.comm = comm;
      auto communicator =
          CreateNcclCommunicator(FindNccl(), *rank.device, *rank.store, name, group, own);
      communicator->Try(*rank.device, kStep);
      return communicator;
    };
    return body(rank);
  };
}

// NCCL ends communicators a little later, and gives their memory back then.
void WaitForEnds() {
  while (EmulatedCalls("NCCL's end of a communicator") <
         EmulatedCalls("ncclCommDestroy") + EmulatedCalls("ncclCommAbort")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Tensors of the suite take several pieces of it, in bf16, too.
constexpr int64_t kStagingBytes = 256 << 10;
constexpr NcclOptions kDeterministic{.deterministic = true, .staging_bytes = kStagingBytes};
constexpr NcclOptions kNative{.staging_bytes = kStagingBytes};
// The suite ends communicators beside peers that live on, which is waited for in vain.
constexpr double kSoon_s = 0.2;
constexpr NcclOptions kDeterministicSoon{
    .deterministic = true, .staging_bytes = kStagingBytes, .end_patience_s = kSoon_s};
constexpr NcclOptions kNativeSoon{.staging_bytes = kStagingBytes, .end_patience_s = kSoon_s};
constexpr NcclOptions kExactIntoFp32{.exact_into_fp32 = true, .staging_bytes = kStagingBytes};
// NCCL's collectives before the first one of a kNative: kStep, each small and large.
constexpr int64_t kTried = 8;

template <const NcclOptions& options>
std::vector<Outcome> RunThreads(int size, const Body& body) {
  UseGpus({});
  return RunThreadRanksWith(nullptr, size, OnNccl(body, options));
}
template <const NcclOptions& options>
std::vector<Outcome> RunProcesses(int size, const Body& body) {
  UseGpus({});
  return RunProcessRanksWith(nullptr, size, OnNccl(body, options));
}

std::vector<SuiteCase> Cases(RunRanks run, bool in_rank_order) {
  std::vector<SuiteCase> cases;
  for (const int size : {1, 2, 3}) cases.push_back({run, size, in_rank_order, /*waits=*/true});
  return cases;
}

// Processes first: they fork while no thread runs.
INSTANTIATE_TEST_SUITE_P(ADeterministicProcesses, CommunicatorSuite,
                         ::testing::ValuesIn(Cases(RunProcesses<kDeterministicSoon>, true)),
                         SuiteCaseName);
INSTANTIATE_TEST_SUITE_P(ANativeProcesses, CommunicatorSuite,
                         ::testing::ValuesIn(Cases(RunProcesses<kNativeSoon>, false)),
                         SuiteCaseName);
INSTANTIATE_TEST_SUITE_P(BDeterministicThreads, CommunicatorSuite,
                         ::testing::ValuesIn(Cases(RunThreads<kDeterministicSoon>, true)),
                         SuiteCaseName);
INSTANTIATE_TEST_SUITE_P(BNativeThreads, CommunicatorSuite,
                         ::testing::ValuesIn(Cases(RunThreads<kNativeSoon>, false)), SuiteCaseName);

// The results of all ranks, each of which must have returned.
std::vector<std::string> Results(const std::vector<Outcome>& outcomes) {
  std::vector<std::string> results;
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    results.push_back(outcome.result);
  }
  return results;
}

// However small the pieces are, and whatever is left for the last.
TEST(NcclCommunicatorTest, DeterministicSumsHaveTheBitsOfTheCpu) {
  UseGpus({});
  for (const int size : {2, 3}) {
    const auto cpu = Results(RunThreadRanks(size, MixedCollectives));
    for (const int64_t bytes : {int64_t{4'000}, int64_t{100'003}, kNcclStagingBytes}) {
      const NcclOptions options{.deterministic = true, .staging_bytes = bytes};
      EXPECT_EQ(Results(RunThreadRanksWith(nullptr, size, OnNccl(MixedCollectives, options))), cpu)
          << size << " ranks, " << bytes;
    }
  }
}

// Or the test above would not see which of the two has run.
TEST(NcclCommunicatorTest, NativeSumsHaveBitsOfTheirOwn) {
  EXPECT_NE(Results(RunThreads<kNative>(3, MixedCollectives)),
            Results(RunThreads<kDeterministic>(3, MixedCollectives)));
}

// As a ring adds: from the rank behind the slice's owner to the owner, rounded after each. Divided
// by 2 in fp16: of three numbers of 4e4, the first two would overflow.
template <typename T>
std::string WidenedSum(Rank& rank, DType dtype, const char* name, float divisor) {
  constexpr int64_t kShard = 300;
  const auto value = [](int r, int64_t i) { return (i % 7 == 0 ? 4e4f : 1.f) + 0.37f * r + i; };
  const auto stream = rank.device->CreateStream("comm");
  const auto comm = rank.join(name, Patient());
  Tensor full(*rank.device, dtype, kShard * rank.size), part(*rank.device, DType::kFloat32, kShard);
  full.Fill([&](int64_t i) { return value(rank.rank, i); });
  comm->ReduceScatter(*stream, full.view(), part.view());
  stream->Synchronize();
  const auto want = [&](int64_t i) {
    const auto of = [&](int r) {
      const auto sent = static_cast<float>(T(value(r % rank.size, rank.rank * kShard + i)));
      return static_cast<float>(T(sent / divisor));
    };
    T sum(of(rank.rank + 1));
    for (int r = 2; r <= rank.size; ++r) sum = T(static_cast<float>(sum) + of(rank.rank + r));
    Require(std::isfinite(static_cast<float>(sum)), "the sum overflows");
    return divisor * static_cast<float>(sum);
  };
  part.RequireEqual(want, "the sum");
  return "";
}

TEST(NcclCommunicatorTest, WidensWhatNcclHasSummed) {
  Results(RunThreads<kNative>(3, [](Rank& rank) -> std::string {
    return WidenedSum<BFloat16>(rank, DType::kBFloat16, "bf16", 1) +
           WidenedSum<Float16>(rank, DType::kFloat16, "fp16", 2);
  }));
}

// NCCL's sum lies where the input was: who reads that has to wait.
TEST(NcclCommunicatorTest, CheckerSeesWhatIsOverwritten) {
  for (const NcclOptions& options : {kNative, kExactIntoFp32}) {
    UseGpus({});
    int races = 0;
    const auto checker =
        std::make_shared<StreamChecker>([&](const StreamChecker::Race&) { ++races; });
    const auto body = [&](Rank& rank) -> std::string {
      rank.device = CreateCudaDevice({.checker = checker});
      const auto one = rank.device->CreateStream("one"), two = rank.device->CreateStream("two");
      const auto comm = rank.join("overwritten", Patient());
      Tensor full(*rank.device, DType::kBFloat16, 4000), part(*rank.device, DType::kFloat32, 4000);
      comm->ReduceScatter(*one, full.view(), part.view());
      Operation reads;
      reads.name = "reads";
      reads.reads = {Range(full.view().data, full.view().bytes())};
      reads.kernels.cuda = [](CudaStreamHandle) {};
      two->Enqueue(std::move(reads));
      one->Synchronize();
      two->Synchronize();
      return "";
    };
    Results(RunThreadRanksWith(nullptr, 1, OnNccl(body, options)));
    EXPECT_EQ(races, options.exact_into_fp32 ? 0 : 1);
  }
}

// One call, then a second one, whose CommError each rank returns.
std::string FailureOfTheSecond(Rank& rank, double timeout_s) {
  const auto stream = rank.device->CreateStream("comm");
  const auto comm = rank.join("failing", {.timeout_s = timeout_s});
  Tensor data(*rank.device, DType::kFloat32, 7);
  comm->AllReduce(*stream, data.view());
  comm->AllReduce(*stream, data.view());
  const std::string error = CommErrorOf(*stream);
  const auto later = rank.device->CreateStream("later");
  comm->AllReduce(*later, data.view());
  Require(CommErrorOf(*later) == error, "a later call must fail alike");
  Barrier(*rank.store, "all have failed", rank.rank, rank.size);
  return error;
}

// The first to see it is the rank's watcher, or its host where NCCL has not launched the call by
// then.
TEST(NcclCommunicatorTest, AnAsynchronousErrorEndsAllRanks) {
  UseGpus({.nccl_fails = kTried + 2});
  const auto outcomes = RunThreadRanksWith(
      nullptr, 3,
      OnNccl([](Rank& rank) { return FailureOfTheSecond(rank, /*timeout_s=*/20); }, kNative));
  const auto errors = Results(outcomes);
  const std::string& error = errors.front();
  const std::string what =
      "unhandled system error (run with NCCL_DEBUG=INFO for details) (a cable is loose), in "
      "all_reduce #1 (n = 7, fp32)";
  // Who has not called by then is named behind it.
  EXPECT_TRUE(error.starts_with("rank 2: NCCL: " + what) ||
              error.starts_with("rank 2: ncclAllReduce: " + what))
      << error;
  for (const std::string& others : errors) EXPECT_EQ(others, error);
}

// The GPU of the last rank never comes to it; as far as its host knows it has.
TEST(NcclCommunicatorTest, WhatHangsTimesOut) {
  UseGpus({.nccl_hangs = kTried + 2});
  const auto outcomes = RunThreadRanksWith(
      nullptr, 3,
      OnNccl([](Rank& rank) { return FailureOfTheSecond(rank, /*timeout_s=*/1); }, kNative));
  for (const std::string& error : Results(outcomes)) {
    EXPECT_EQ(error, "all_reduce #1 (n = 7, fp32) timed out after 1 s");
  }
}

// Nor does the host of the last rank come out of its call, as where a driver does not return: the
// others know where it stands. Its communicator is left behind, not aborted beside the call; the
// others' aborts return when its process has ended.
TEST(NcclCommunicatorTest, ACallThatDoesNotReturnTimesOut) {
  UseGpus({.nccl_blocks = kTried + 2});
  const Body body = [](Rank& rank) {
    const std::string error = FailureOfTheSecond(rank, /*timeout_s=*/1);
    return error + (AnyLeftBehind() ? ", left behind" : "");
  };
  const auto outcomes = RunProcessRanksWith(nullptr, 3, OnNccl(body, kNative));
  const std::string error = "all_reduce #1 (n = 7, fp32) timed out after 1 s";
  EXPECT_EQ(Results(outcomes), (std::vector{error, error, error + ", left behind"}));
}

// A rank that is killed leaves no collective behind that waits for it.
TEST(NcclCommunicatorTest, AKilledRankEndsTheOthers) {
  UseGpus({});
  const auto outcomes =
      RunProcessRanksWith(nullptr, 3,
                          OnNccl(
                              [](Rank& rank) -> std::string {
                                const auto stream = rank.device->CreateStream("comm");
                                const auto comm = rank.join("killed", Patient());
                                Tensor data(*rank.device, DType::kFloat32, 7);
                                comm->AllReduce(*stream, data.view());
                                stream->Synchronize();
                                Barrier(*rank.store, "all are up", rank.rank, rank.size);
                                if (rank.rank == 1) raise(SIGKILL);
                                comm->AllReduce(*stream, data.view());
                                return CommErrorOf(*stream);
                              },
                              kNative));
  EXPECT_EQ(outcomes[1].error, "signal 9");
  for (const int r : {0, 2}) {
    // It may be gone before these have left the barrier.
    const std::string text = outcomes[r].result + outcomes[r].error;
    EXPECT_NE(text.find("rank 1 disconnected"), std::string::npos) << text;
  }
}

// A collective that another rank has started, and this one is in, may never end once that rank has
// gone: the wait is shorter than for a rank that may yet come.
TEST(NcclCommunicatorTest, WhatARankThatLeftHadDoneFailsSoon) {
  UseGpus({.nccl_strands = kTried + 2});
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes = RunThreadRanksWith(nullptr, 2,
                                           OnNccl(
                                               [](Rank& rank) -> std::string {
                                                 const auto stream =
                                                     rank.device->CreateStream("comm");
                                                 auto comm = rank.join("stranded", Patient());
                                                 Tensor data(*rank.device, DType::kFloat32, 7);
                                                 comm->AllReduce(*stream, data.view());
                                                 comm->AllReduce(*stream, data.view());
                                                 if (rank.rank == 1) return CommErrorOf(*stream);
                                                 stream->Synchronize();
                                                 comm.reset();
                                                 return "rank 0 has left the group";
                                               },
                                               kNative));
  for (const std::string& error : Results(outcomes)) EXPECT_EQ(error, "rank 0 has left the group");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

// As NCCL documents it: abort is for what cannot end.
TEST(NcclCommunicatorTest, IsFinalizedWhereAllIsWellAndAbortedElsewhere) {
  const auto ends = [](const Body& body) {
    const int64_t destroyed = EmulatedCalls("ncclCommDestroy"),
                  aborted = EmulatedCalls("ncclCommAbort");
    Results(RunThreads<kNative>(2, body));
    return std::pair(EmulatedCalls("ncclCommDestroy") - destroyed,
                     EmulatedCalls("ncclCommAbort") - aborted);
  };
  EXPECT_EQ(ends([](Rank& rank) -> std::string {
              const auto stream = rank.device->CreateStream("comm");
              const auto comm = rank.join("well", Patient());
              Tensor data(*rank.device, DType::kFloat32, 7);
              for (int i = 0; i < 3; ++i) comm->AllReduce(*stream, data.view());
              stream->Synchronize();
              return "";
            }),
            std::pair(int64_t{2}, int64_t{0}));
  EXPECT_EQ(ends([](Rank& rank) -> std::string {
              const auto stream = rank.device->CreateStream("comm");
              const auto comm = rank.join("not well", Patient());
              Tensor data(*rank.device, DType::kFloat32, 7);
              if (rank.rank == 0) comm->AllReduce(*stream, data.view());  // Alone.
              Barrier(*rank.store, "called", rank.rank, rank.size);
              return "";
            }),
            std::pair(int64_t{1}, int64_t{1}));
}

// NCCL connects at the first call of a kind, and waits there for the peers. Collectives that were
// tried have connected by then; a broadcast has not.
TEST(NcclCommunicatorTest, FirstCallsOfAStepWaitForNobody) {
  for (const auto run :
       {RunThreads<kNative>, RunThreads<kDeterministic>, RunThreads<kExactIntoFp32>}) {
    std::atomic<bool> called = false;
    const auto outcomes = run(2, [&](Rank& rank) -> std::string {
      Device& device = *rank.device;
      const auto stream = device.CreateStream("comm");
      const auto comm = rank.join("first", Patient());
      Tensor full(device, DType::kFloat32, 2000), part(device, DType::kFloat32, 1000);
      const auto all = [&] {
        comm->AllGather(*stream, part.view(), full.view());
        comm->ReduceScatter(*stream, full.view(), part.view());
        comm->AllReduce(*stream, full.view());
      };
      // Rank 0 has made its calls before rank 1 begins.
      if (rank.rank == 0) all();
      Barrier(*rank.store, "returned", rank.rank, rank.size);
      if (rank.rank == 1) all();
      stream->Synchronize();
      if (rank.rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        called = true;
      }
      comm->Broadcast(*stream, full.view(), 0);
      Require(called, "a broadcast has connected without the peer");
      stream->Synchronize();
      return "";
    });
    Results(outcomes);
  }
}

// All that it needs of the GPU a communicator has before a run measures what is left.
TEST(NcclCommunicatorTest, TakesNoMemoryInSteps) {
  const auto free_bytes = [] {
    size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    return free;
  };
  for (const bool exact : {false, true}) {
    WaitForEnds();
    UseGpus({});
    constexpr int64_t kOwnBytes = (2 << 20) + 8192;  // Nobody else's.
    const NcclOptions options{
        .exact_into_fp32 = exact, .staging_bytes = kOwnBytes, .max_blocks = exact ? 5 : 0};
    const auto body = [&](Rank& rank) -> std::string {
      Device& device = *rank.device;
      const auto stream = device.CreateStream("comm");
      Tensor full(device, DType::kFloat32, 2000), part(device, DType::kFloat32, 1000),
          low(device, DType::kBFloat16, 2000);
      const size_t before = free_bytes();
      const auto comm = rank.join("memory", Patient());
      Barrier(*rank.store, "joined", rank.rank, rank.size);
      const size_t joined = free_bytes();
      Require(joined < before, "NCCL takes nothing");
      Require((EmulatedAllocation(kOwnBytes) != nullptr) == exact, "staging memory");
      comm->AllGather(*stream, part.view(), full.view());
      comm->ReduceScatter(*stream, full.view(), part.view());
      comm->AllReduce(*stream, full.view());
      comm->ReduceScatter(*stream, low.view(), part.view());
      stream->Synchronize();
      Barrier(*rank.store, "done", rank.rank, rank.size);
      Require(free_bytes() == joined, "a call has taken memory");
      Barrier(*rank.store, "measured", rank.rank, rank.size);
      return "";
    };
    Results(RunThreadRanksWith(nullptr, 2, OnNccl(body, options)));
    EXPECT_EQ(EmulatedCalls("maxCTAs 5"), exact ? 2 : 0);
  }
}

// Nor for a call that NCCL makes in another way because of its size.
TEST(NcclCommunicatorTest, TriesTheLargestCallsOfAJob) {
  constexpr int64_t kMost = 300'000;
  UseGpus({.nccl_middle = 1'100'000});
  const auto free_bytes = [] {
    size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    return free;
  };
  for (const NcclOptions& options : {kExactIntoFp32, kDeterministic}) {
    WaitForEnds();
    const auto body = [&](Rank& rank) -> std::string {
      Device& device = *rank.device;
      const auto stream = device.CreateStream("comm");
      Tensor full(device, DType::kFloat32, 2 * kMost), part(device, DType::kFloat32, kMost),
          low(device, DType::kBFloat16, 2 * kMost), more(device, DType::kFloat32, 2 * kMost);
      const auto comm = rank.join("largest", Patient());
      // One rank has nothing for the other.
      const ExchangeLayout uneven(2, {kMost, kMost, 0, kMost});
      comm->Try(device, {{Collective::kAllGather, DType::kFloat32, DType::kFloat32, kMost},
                         {Collective::kReduceScatter, DType::kFloat32, DType::kFloat32, kMost},
                         {Collective::kReduceScatter, DType::kBFloat16, DType::kFloat32, kMost},
                         {Collective::kAllReduce, DType::kFloat32, DType::kFloat32, 2 * kMost},
                         {Collective::kAllToAll, DType::kFloat32, DType::kFloat32, kMost / 2},
                         {Collective::kAllToAll, DType::kFloat32, DType::kFloat32, 0, &uneven}});
      Barrier(*rank.store, "tried", rank.rank, rank.size);
      const size_t tried = free_bytes();
      full.Fill([](int64_t) { return 1.f; });
      comm->AllReduce(*stream, full.view());
      comm->ReduceScatter(*stream, full.view(), part.view());
      comm->ReduceScatter(*stream, low.view(), part.view());
      comm->AllGather(*stream, part.view(), full.view());
      comm->AllToAll(*stream, part.view(), full.view().Slice(0, kMost));
      comm->Exchange(*stream, uneven, full.view(), more.view());
      comm->AllReduce(*stream, part.view().Slice(0, 7));  // The smallest ones are tried, too.
      stream->Synchronize();
      Barrier(*rank.store, "done", rank.rank, rank.size);
      Require(free_bytes() == tried, "a call has taken memory");
      Barrier(*rank.store, "measured", rank.rank, rank.size);
      return "";
    };
    Results(RunThreadRanksWith(nullptr, 2, OnNccl(body, options)));
  }
}

// Every question makes every rank answer, through one store.
TEST(NcclCommunicatorTest, OneRankAsksAboutASlowCall) {
  const auto outcomes = RunThreads<kNative>(4, [](Rank& rank) -> std::string {
    const auto stream = rank.device->CreateStream("comm");
    Tensor full(*rank.device, DType::kFloat32, 8);
    const auto comm = rank.join("slow", {.timeout_s = 6});
    // Ranks 0 to 2 are in the call; rank 0 asks after 3 s, rank 1 after 4.
    if (rank.rank == 3) std::this_thread::sleep_for(std::chrono::milliseconds(3300));
    comm->AllReduce(*stream, full.view());
    stream->Synchronize();
    Barrier(*rank.store, "done", rank.rank, rank.size);
    const int64_t news = rank.store->Add("nccl/slow/news", 0);
    Barrier(*rank.store, "read", rank.rank, rank.size);
    return std::to_string(news);
  });
  for (const std::string& news : Results(outcomes)) {
    EXPECT_GE(std::stoi(news), 1);
    EXPECT_LE(std::stoi(news), 2);  // Where this machine is slow, too.
  }
}

TEST(NcclCommunicatorTest, CallsOnTwoStreamsAreInOrder) {
  const auto outcomes = RunThreads<kNative>(2, [](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto first = device.CreateStream("first"), second = device.CreateStream("second");
    const auto gate = device.CreateStream("gate");
    const auto comm = rank.join("turn", Patient());
    Tensor data(device, DType::kFloat32, 7);
    data.Fill([](int64_t) { return 1.f; });
    std::promise<void> open;
    gate->Enqueue({"gate", {}, {}, {}, {.host = [&](ThreadPool&) { open.get_future().wait(); }}});
    first->Wait(gate->Record());
    comm->AllReduce(*first, data.view());
    comm->AllReduce(*second, data.view());
    open.set_value();
    second->Synchronize();
    data.RequireEqual([](int64_t) { return 4.f; }, "sum of sums");
    return "";
  });
  Results(outcomes);
}

// One begins while the other one waits.
TEST(NcclCommunicatorTest, TwoCommunicatorsAreInFlightTogether) {
  const auto outcomes = RunThreads<kNative>(2, [](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto gather = device.CreateStream("gather"), reduce = device.CreateStream("reduce");
    const auto gate = device.CreateStream("gate");
    const auto one = rank.join("one", Patient()), other = rank.join("other", Patient());
    Tensor a(device, DType::kFloat32, 7), b(device, DType::kFloat32, 7);
    for (Tensor* const tensor : {&a, &b}) tensor->Fill([](int64_t) { return 1.f; });
    std::promise<void> open;
    gate->Enqueue({"gate", {}, {}, {}, {.host = [&](ThreadPool&) { open.get_future().wait(); }}});
    gather->Wait(gate->Record());
    one->AllReduce(*gather, a.view());
    other->AllReduce(*reduce, b.view());
    open.set_value();
    gather->Synchronize();
    reduce->Synchronize();
    for (Tensor* const tensor : {&a, &b}) {
      tensor->RequireEqual([](int64_t) { return 2.f; }, "sum");
    }
    return "";
  });
  Results(outcomes);
  EXPECT_STREQ(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
}

TEST(NcclCommunicatorTest, LaunchOrderThatTheUserSetsIsKept) {
  ASSERT_EQ(setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1), 0);
  (void)FindNccl();
  EXPECT_STREQ(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "0");
  ASSERT_EQ(unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT"), 0);
}

// A launch in progress is asked about at once: 80 calls of a micro-batch slept for 8 ms or more.
TEST(NcclCommunicatorTest, ALaunchIsNotSleptFor) {
  Results(RunThreads<kNative>(1, [](Rank& rank) -> std::string {
    constexpr int kCalls = 80, kRounds = 5;
    const auto stream = rank.device->CreateStream("comm");
    const auto comm = rank.join("spins", Patient());
    Tensor data(*rank.device, DType::kFloat32, 7);
    // A lock that is held elsewhere is slept for, now and then: a launch that sleeps does so in
    // every round.
    auto slept = std::numeric_limits<long>::max();
    for (int round = 0; round < kRounds; ++round) {
      rusage before = {}, after = {};
      getrusage(RUSAGE_THREAD, &before);
      for (int i = 0; i < kCalls; ++i) comm->AllReduce(*stream, data.view());
      getrusage(RUSAGE_THREAD, &after);
      stream->Synchronize();
      slept = std::min(slept, after.ru_nvcsw - before.ru_nvcsw);
    }
    Require(slept < kCalls, "the host slept " + std::to_string(slept) + " times");
    return "";
  }));
}

// The staging memory is used again and again, and events order that as any other use.
TEST(NcclCommunicatorTest, CheckerSeesNoRace) {
  UseGpus({});
  int races = 0;
  const auto checker =
      std::make_shared<StreamChecker>([&](const StreamChecker::Race&) { ++races; });
  const auto outcomes =
      RunThreadRanksWith(nullptr, 1,
                         OnNccl(
                             [&](Rank& rank) -> std::string {
                               rank.device = CreateCudaDevice({.checker = checker});
                               const auto one = rank.device->CreateStream("one"),
                                          two = rank.device->CreateStream("two");
                               const auto comm = rank.join("checked", Patient());
                               Tensor full(*rank.device, DType::kBFloat16, 4000),
                                   shard(*rank.device, DType::kFloat32, 4000),
                                   other(*rank.device, DType::kFloat32, 4000);
                               comm->ReduceScatter(*one, full.view(), shard.view());
                               comm->AllReduce(*two, other.view());
                               one->Synchronize();
                               two->Synchronize();
                               return "";
                             },
                             kDeterministic));
  Results(outcomes);
  EXPECT_EQ(races, 0);
}

// Nor does it see what a call does not say: that the staging memory is written to.
TEST(NcclCommunicatorTest, CallsSayThatTheyUseTheStagingMemory) {
  UseGpus({});
  std::vector<std::string> races;
  const auto checker = std::make_shared<StreamChecker>(
      [&](const StreamChecker::Race& race) { races.push_back(race.ToString()); });
  constexpr NcclOptions kOptions{.deterministic = true, .staging_bytes = (2 << 20) + 4096};
  const auto body = [&](Rank& rank) -> std::string {
    rank.device = CreateCudaDevice({.checker = checker});
    const auto stream = rank.device->CreateStream("comm"), other = rank.device->CreateStream("o");
    const auto comm = rank.join("staging", Patient());
    Tensor data(*rank.device, DType::kFloat32, 7);
    const void* const staging = EmulatedAllocation(kOptions.staging_bytes);
    Require(staging != nullptr, "no staging memory");
    comm->AllReduce(*stream, data.view());
    Operation reads;
    reads.name = "peek";
    reads.reads = {Range(staging, 4096)};
    reads.kernels.cuda = [](CudaStreamHandle) {};
    other->Enqueue(std::move(reads));
    stream->Synchronize();
    other->Synchronize();
    return "";
  };
  Results(RunThreadRanksWith(nullptr, 1, OnNccl(body, kOptions)));
  ASSERT_EQ(races.size(), 1u);
  EXPECT_NE(races[0].find("all_reduce on comm"), std::string::npos) << races[0];
}

// NCCL refuses that, and so every rank hears of it.
TEST(NcclCommunicatorTest, RanksThatShareAGpuAreRefused) {
  UseGpus({});
  const auto outcomes = RunThreadRanksWith(nullptr, 3,
                                           OnNccl(
                                               [](Rank& rank) -> std::string {
                                                 try {
                                                   rank.join("shared", Patient());
                                                 } catch (const CommError& error) {
                                                   return error.what();
                                                 }
                                                 return "connected";
                                               },
                                               kNative, /*last_gpu=*/1));
  for (const std::string& error : Results(outcomes)) {
    EXPECT_NE(error.find("[nccl] shared, rank "), std::string::npos) << error;
    EXPECT_NE(error.find("Duplicate GPU detected : rank 1 and rank 2"), std::string::npos) << error;
  }
}

// One that never comes is named by the others, within the time they have for it.
TEST(NcclCommunicatorTest, ConnectingTimesOut) {
  UseGpus({});
  setenv("NCCL_SOCKET_IFNAME", "=wire7", 1);
  const auto outcomes = RunThreadRanksWith(
      nullptr, 2,
      OnNccl(
          [](Rank& rank) -> std::string {
            // The second says that it is there, and no more.
            if (rank.rank == 1) {
              Exchange(*rank.store, "nccl/alone/id", RankGroup::World(1, 2), "1 -1 \n");
              Exchange(*rank.store, "nccl/alone/connected", RankGroup::World(1, 2), "1 -1 \n");
              return "[nccl] alone, rank 0: not connected within 1 s";
            }
            try {
              rank.join("alone", {.timeout_s = 1});
            } catch (const CommError& error) {
              return error.what();
            }
            return "connected";
          },
          kNative));
  for (const std::string& error : Results(outcomes)) {
    EXPECT_TRUE(error.starts_with("[nccl] alone, rank 0: not connected within 1 s")) << error;
  }
  EXPECT_NE(outcomes[0].result.find("s, over NCCL_SOCKET_IFNAME==wire7; InfiniBand's adapters are "
                                    "NCCL_IB_HCA's; NCCL_DEBUG=INFO says"),
            std::string::npos)
      << outcomes[0].result;
  unsetenv("NCCL_SOCKET_IFNAME");
}

// Nor does one hang for ever that tries collectives which do, or for which there is no memory.
TEST(NcclCommunicatorTest, WhatIsTriedFailsOnAllRanks) {
  const auto why = [](const EmulatedGpus& gpus) {
    UseGpus(gpus);
    const auto outcomes = RunThreadRanksWith(nullptr, 2,
                                             OnNccl(
                                                 [](Rank& rank) -> std::string {
                                                   try {
                                                     rank.join("tried", {.timeout_s = 1});
                                                   } catch (const CommError& error) {
                                                     return error.what();
                                                   }
                                                   return "connected";
                                                 },
                                                 kNative));
    std::string all;
    for (const std::string& error : Results(outcomes)) all += error + "\n";
    return all;
  };
  const std::string hung =
      "[nccl] tried, rank 0: all_gather #0 (n = 1, fp32) timed out after 1 s\n";
  EXPECT_EQ(why({.nccl_hangs = 1}), hung + hung);
  // Staging memory, the communicator that is tried and one for each rank do not fit.
  const std::string full = why({.bytes = 7 << 20});
  EXPECT_NE(full.find("out of memory"), std::string::npos) << full;
}

TEST(NcclCommunicatorTest, SaysWhyThereIsNoNccl) {
  const auto why = [](int version) -> std::string {
    UseGpus({.nccl = version});
    try {
      return VersionText(*FindNccl());
    } catch (const DeviceError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(why(22809), "2.28.9");
  for (const char* words : {"need NCCL, 2.28.0 or newer", "libnccl.so.2 is not there",
                            "looked in this program", "FSDP_TRAIN_CUDA_LIBS"}) {
    EXPECT_NE(why(0).find(words), std::string::npos) << why(0);
  }
  EXPECT_NE(why(22703).find("is version 2.27.3, and this program needs 2.28.0 or newer"),
            std::string::npos)
      << why(22703);
}

}  // namespace
}  // namespace fsdp::testing
