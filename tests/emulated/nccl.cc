// A fake of NCCL over the emulated CUDA runtime: ranks are threads of one process, or processes of
// one host that share the memory whose file the unique id names.
//   Order   Collectives of a communicator run one after the other, on the threads of their streams.
//           Ranks that do not make the same calls (kind, count, type, root, what each sends each)
//           all get the asynchronous error ncclInvalidUsage and are stuck, as on a GPU.
//   Sums    From the last rank to the first, each partial sum rounded to the type: not the order
//           of the CPU's transports, nor their roundings.
//   Stuck   A call that waits for a rank that does not come waits until its own rank aborts: an
//           abort ends nothing of others. A call whose driver does not return (nccl_blocks) ends by
//           itself, late.
//   Later   A call is ncclInProgress until it has been asked about three times, and not on the
//           stream before: the real one of 2.28 has a thread launch it.
//   Slow    The first call of a communicator that takes an algorithm makes connections: it waits
//           until all ranks have made as many calls, and takes memory of the GPU. There is one for
//           each kind, one of its own for 8 MiB and more, and one from EmulatedGpus::nccl_middle
//           on.
//   Beside  Calls of two communicators of a GPU in flight on two streams end the program, unless
//           NCCL_LAUNCH_ORDER_IMPLICIT is 1 and the streams are of one priority: an event at a
//           launch's completion orders no kernel of a higher one (driver_types.h of CUDA 13.0,
//           cudaLaunchAttributeLaunchCompletionEvent). So does a call while one of another
//           communicator of the GPU is in progress, which NCCL calls a race (src/strongstream.cc,
//           NCCL_LAUNCH_RACE_FATAL).
//   Ends    An abort and a destroy end what is in flight, and return when all ranks have begun to
//           end the communicator, or are gone: each rank's proxy serves the others until then
//           (src/init.cc, commFree; src/proxy.cc, npeers). Then they give memory back and read the
//           communicator's name for the last time. A communicator that is finalized is in progress
//           until nothing of it is in flight and it has been asked about three times more.
//   Misuse  A call while one is in progress, two threads at once, an abort beside a call, a
//           communicator that has been aborted, a call of one that is finalized, one that is
//           destroyed before that is done: these end the program. Two ranks on one GPU are refused,
//           as NCCL does, unless it is 2.30.3 and NCCL_MULTI_RANK_GPU_ENABLE is 1.
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/emulated/cudart.h"
#include "tests/emulated/gpu_libraries.h"
#include "tests/emulated/nccl_member.h"
#include "trainer/runtime/memory.h"

namespace {

using fsdp::HostAddress;
using fsdp::fake_nccl::Kind;
using fsdp::fake_nccl::kMaxRanks;
using fsdp::fake_nccl::Member;
using fsdp::fake_nccl::SizeOf;
using fsdp::fake_nccl::Work;

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "fake NCCL: %s\n", what.c_str());
  std::abort();
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Member> member;
  int device = 0;
  std::atomic<cudaStream_t> stream{nullptr};  // The stream of its last call.
  std::thread joining;
  std::atomic<int> inside{0};
  int64_t calls = 0;
  std::set<std::pair<Kind, int>> connected;  // By kind and algorithm.
  bool connecting = false;                   // The call in progress waits for the peers.
  std::atomic<int> polls_left{0};            // Until the call in progress is on its stream.
  std::function<ncclResult_t()> launch;      // That.
  std::atomic<bool> overtaken{false};        // A call of another communicator came meanwhile.
  bool finalizing = false;
  int64_t taken = 0;           // Bytes of the GPU.
  const char* name = nullptr;  // The user's.
  std::string name_then;
};

namespace {

std::mutex live_mutex;
std::set<ncclComm_t>& Live() {
  static auto* const live = new std::set<ncclComm_t>;
  return *live;
}

// One call at a time, of a communicator that there is.
class Entered {
 public:
  explicit Entered(ncclComm_t comm) : comm_(comm) {
    std::lock_guard lock(live_mutex);
    if (!Live().contains(comm)) Die("a communicator that has been aborted, or never was");
    if (comm_->inside++ != 0) Die("two threads at once in one communicator");
  }
  ~Entered() { --comm_->inside; }

 private:
  const ncclComm_t comm_;
};

// NCCL_LAUNCH_ORDER_IMPLICIT, which is off where nobody sets it.
bool OrdersLaunches() {
  const char* const text = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return text != nullptr && std::atoi(text) != 0;
}

int PriorityOf(cudaStream_t stream) {
  int priority = 0;
  (void)cudaStreamGetPriority(stream, &priority);
  return priority;
}

// Kernels of two communicators may each hold what the other one's peer needs to begin. A call in
// progress that nobody asks for again is given up, and its communicator about to be aborted.
void CheckOrder(ncclComm_t comm, cudaStream_t stream) {
  std::lock_guard lock(live_mutex);
  for (const ncclComm_t other : Live()) {
    if (other == comm || other->device != comm->device) continue;
    if (other->polls_left > 0 && !other->finalizing) other->overtaken = true;
    if (other->member->in_flight == 0 || other->stream == stream) continue;
    if (!OrdersLaunches()) {
      Die("two communicators in flight on two streams of one GPU, without "
          "NCCL_LAUNCH_ORDER_IMPLICIT=1");
    }
    if (PriorityOf(other->stream) != PriorityOf(stream)) {
      Die("two communicators in flight on streams of two priorities, which NCCL cannot order");
    }
  }
  comm->stream = stream;
}

bool Overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto *x = static_cast<const std::byte*>(a), *y = static_cast<const std::byte*>(b);
  return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

bool OfTheGpu(const void* data) {
  return (reinterpret_cast<uintptr_t>(data) & fsdp::kDeviceAddress) != 0;
}

constexpr int kPolls = 3;
constexpr int64_t kLargeBytes = 8 << 20;
constexpr int kMaxChannels = 64;
constexpr const char* kStep = "a graph of cuDNN's";  // That is executed.
constexpr std::chrono::seconds kDriverReturns{4};    // Behind all patience of the tests.
constexpr int64_t kBytesOfACommunicator = 1 << 20, kBytesOfAKind = 2 << 20;

bool Take(ncclComm_t comm, int64_t bytes) {
  if (!fsdp::TakeEmulatedMemory(bytes)) return false;
  comm->taken += bytes;
  return true;
}

ncclResult_t Issue(ncclComm_t comm, Work work, cudaStream_t stream) {
  if (comm->polls_left > 0) Die("a call while another one is in progress");
  if (comm->finalizing) Die("a call of a communicator that is finalized");
  const ncclResult_t state = comm->member->state;
  if (state == ncclInProgress) Die("a call before the communicator is there");
  if (state != ncclSuccess) return state;
  CheckOrder(comm, stream);
  for (auto* parts : {&work.to, &work.from}) {
    for (Work::Part& part : *parts) part.data = HostAddress(part.data);
  }
  const int64_t turn = comm->calls++;
  const std::shared_ptr<Member> blocked = comm->member;
  if (blocked->rank == blocked->size - 1 && turn + 1 == fsdp::TheEmulatedGpus().nccl_blocks) {
    std::this_thread::sleep_for(kDriverReturns);
    return ncclSystemError;
  }
  comm->member->Called(turn);
  const Kind kind = work.call.kind;
  size_t sent = 0, received = 0;
  for (const Work::Part& part : work.to) sent += part.bytes;
  for (const Work::Part& part : work.from) received += part.bytes;
  const fsdp::EmulatedGpus gpus = fsdp::TheEmulatedGpus();
  const auto bytes = static_cast<int64_t>(std::max(sent, received));
  const int algorithm = bytes >= kLargeBytes ? 2 : bytes >= gpus.nccl_middle ? 1 : 0;
  auto launch = [member = comm->member, work = std::move(work), stream, turn] {
    ++member->in_flight;
    const fsdp::EmulatedLibraryCall call;
    const cudaError_t error = fsdp::LaunchOnEmulatedStream(stream, [member, work, turn] {
      member->Run(work, turn);
      --member->in_flight;
    });
    if (error == cudaSuccess) return ncclSuccess;
    member->Fail(ncclUnhandledCudaError, cudaGetErrorName(error));
    return ncclUnhandledCudaError;
  };
  comm->connecting = comm->connected.insert({kind, algorithm}).second;
  if (comm->connecting && !gpus.nccl_late_connections && fsdp::EmulatedCalls(kStep) > 0) {
    comm->member->Fail(ncclUnhandledCudaError, "it connects in a step");
    return ncclUnhandledCudaError;
  }
  if (comm->connecting && !Take(comm, kBytesOfAKind)) {
    comm->member->Fail(ncclUnhandledCudaError, "Cuda failure 'out of memory'");
    return ncclUnhandledCudaError;
  }
  comm->polls_left = kPolls;
  comm->launch = std::move(launch);
  return ncclInProgress;
}

void End(ncclComm_t comm) {
  {
    std::lock_guard lock(live_mutex);
    if (Live().erase(comm) == 0) Die("a communicator that has been aborted, or never was");
    if (comm->inside > 0) Die("an abort beside a call of the same communicator");
  }
  comm->member->aborted = true;
  if (comm->joining.joinable()) comm->joining.join();
  comm->member->EndWithPeers();
  if (comm->name != nullptr && comm->name_then != comm->name) Die("a communicator's name is gone");
  (void)fsdp::TakeEmulatedMemory(-comm->taken);
  delete comm;
  fsdp::CountEmulatedCall("NCCL's end of a communicator");
}

std::byte* Bytes(const void* data) {
  return static_cast<std::byte*>(const_cast<void*>(data));  // Data to send is only read.
}

// `parts` of the sent and of the received tensor, of `count` elements each; in place where the one
// of the rank lies at the other's.
ncclResult_t Collect(Kind kind, const void* send, int send_parts, void* receive, int receive_parts,
                     size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                     cudaStream_t stream) {
  const Entered entered(comm);
  Member& member = *comm->member;
  const size_t bytes = count * SizeOf(type);
  const bool in_place = kind == Kind::kAllGather ? send == Bytes(receive) + member.rank * bytes
                        : kind == Kind::kReduceScatter
                            ? receive == Bytes(send) + member.rank * bytes
                        : kind == Kind::kAlltoAll ? false
                                                  : send == receive;
  const bool overlap = Overlap(send, bytes * send_parts, receive, bytes * receive_parts);
  if (bytes > 0 && (!OfTheGpu(send) || !OfTheGpu(receive) || (overlap && !in_place))) {
    member.Fail(ncclInvalidArgument, "pointers of a collective");
    return ncclInvalidArgument;
  }
  if (root < 0 || root >= member.size) {
    member.Fail(ncclInvalidArgument, "the root of a collective");
    return ncclInvalidArgument;
  }
  Work work;
  work.call = {.kind = kind, .count = count, .type = type, .root = root};
  work.to.resize(member.size);
  work.from.resize(member.size);
  work.sums = kind == Kind::kReduceScatter || kind == Kind::kAllReduce;
  for (int r = 0; r < member.size; ++r) {
    if (kind != Kind::kBroadcast || member.rank == root) {
      work.to[r] = {Bytes(send) + (send_parts > 1 ? r * bytes : 0), bytes};
    }
    if (kind != Kind::kBroadcast || r == root) {
      work.from[r] = {Bytes(receive) + (receive_parts > 1 ? r * bytes : 0), bytes};
    }
  }
  return Issue(comm, std::move(work), stream);
}

// This thread's group, between ncclGroupStart() and ncclGroupEnd().
struct Group {
  bool open = false;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  Work work;
};
thread_local Group group;

ncclResult_t Put(bool send, void* data, size_t count, ncclDataType_t type, int peer,
                 ncclComm_t comm, cudaStream_t stream) {
  if (!group.open) Die("Send and Recv are of a group here");
  if (group.comm != nullptr && (group.comm != comm || group.stream != stream)) {
    Die("a group is of one communicator and one stream here");
  }
  const Entered entered(comm);
  group.comm = comm;
  group.stream = stream;
  Work& work = group.work;
  work.to.resize(comm->member->size);
  work.from.resize(comm->member->size);
  const size_t bytes = count * SizeOf(type);
  Work::Part& part = (send ? work.to : work.from)[peer];
  if (part.data != nullptr) Die("one Send and one Recv of each peer in a group here");
  if (bytes > 0 && !OfTheGpu(data)) return ncclInvalidArgument;
  part = {static_cast<std::byte*>(data), bytes};
  (send ? work.call.sends : work.call.receives)[peer] = bytes;
  return ncclSuccess;
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) { return comm == nullptr ? "" : comm->member->why(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const int fd = fsdp::fake_nccl::MakeMemory();
  if (fd < 0) return ncclSystemError;
  std::snprintf(id->internal, sizeof(id->internal), "%d %d", static_cast<int>(getpid()), fd);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  int pid = 0, fd = 0, device = 0;
  if (std::sscanf(id.internal, "%d %d", &pid, &fd) != 2 || nranks < 1 || nranks > kMaxRanks ||
      rank < 0 || rank >= nranks || config->magic != 0xcafebeef ||
      cudaGetDevice(&device) != cudaSuccess) {
    return ncclInvalidArgument;
  }
  if (config->blocking != 0) Die("communicators block");
  if (config->maxCTAs != INT_MIN) {
    if (config->maxCTAs < 1 || config->maxCTAs > kMaxChannels) return ncclInvalidArgument;
    fsdp::CountEmulatedCall("maxCTAs " + std::to_string(config->maxCTAs));
  }
  *comm = new ncclComm;
  (*comm)->member = std::make_shared<Member>(rank, nranks, device);
  (*comm)->device = device;
  (*comm)->name = config->commName;
  if (config->commName != nullptr) (*comm)->name_then = config->commName;
  if (!Take(*comm, kBytesOfACommunicator)) {
    delete *comm;
    *comm = nullptr;
    return ncclUnhandledCudaError;
  }
  (*comm)->joining = std::thread([member = (*comm)->member, pid, fd] { member->Join(pid, fd); });
  std::lock_guard lock(live_mutex);
  Live().insert(*comm);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Entered entered(comm);
  Member& member = *comm->member;
  *error = member.state;
  // A communicator that is left behind has no thread of its own left.
  if (*error != ncclInProgress && comm->joining.joinable()) comm->joining.join();
  if (comm->finalizing && cudaPeekAtLastError() != cudaSuccess) *error = ncclUnhandledCudaError;
  if (comm->polls_left == 0 || *error != ncclSuccess) return ncclSuccess;
  if (comm->overtaken) Die("calls of two communicators of one GPU at once");
  *error = ncclInProgress;
  const bool waits = comm->finalizing ? member.in_flight > 0
                                      : comm->connecting && !member.AllHaveCalled(comm->calls - 1);
  if (waits || --comm->polls_left > 0) return ncclSuccess;
  *error = ncclSuccess;
  if (!comm->finalizing) {
    (void)comm->launch();
    comm->launch = nullptr;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Entered entered(comm);
  if (comm->polls_left > 0) Die("a communicator is finalized while a call is in progress");
  if (comm->finalizing) Die("a communicator is finalized twice");
  if (comm->member->state != ncclSuccess) return comm->member->state;
  comm->finalizing = true;
  comm->polls_left = kPolls;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  fsdp::CountEmulatedCall("ncclCommDestroy");
  {
    const Entered entered(comm);
    if (!comm->finalizing || comm->polls_left > 0) Die("a communicator is not finalized yet");
    if (comm->member->in_flight > 0) Die("a communicator is destroyed with work in flight");
  }
  End(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  fsdp::CountEmulatedCall("ncclCommAbort");
  End(comm);
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return Collect(Kind::kAllGather, send, 1, receive, comm->member->size, count, type, 0, comm,
                 stream);
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  return Collect(Kind::kReduceScatter, send, comm->member->size, receive, 1, count, type, 0, comm,
                 stream);
}
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  return Collect(Kind::kAllReduce, send, 1, receive, 1, count, type, 0, comm, stream);
}
ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) {
  const int size = comm->member->size;
  return Collect(Kind::kAlltoAll, send, size, receive, size, count, type, 0, comm, stream);
}
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return Collect(Kind::kBroadcast, send, 1, receive, 1, count, type, root, comm, stream);
}

ncclResult_t ncclGroupStart() {
  if (std::exchange(group.open, true)) Die("a group in a group");
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (!group.open) Die("the end of no group");
  Group done = std::exchange(group, Group());
  if (done.comm == nullptr) return ncclSuccess;
  const Entered entered(done.comm);
  return Issue(done.comm, std::move(done.work), done.stream);
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return Put(/*send=*/true, Bytes(send), count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Put(/*send=*/false, receive, count, type, peer, comm, stream);
}

namespace fsdp {
namespace {

const EmulatedGpuLibrary kNccl(
    GpuLibrary::kNccl,
    {FSDP_EMULATED_FUNCTION(ncclGetErrorString), FSDP_EMULATED_FUNCTION(ncclGetLastError),
     FSDP_EMULATED_FUNCTION(ncclGetUniqueId), FSDP_EMULATED_FUNCTION(ncclCommInitRankConfig),
     FSDP_EMULATED_FUNCTION(ncclCommGetAsyncError), FSDP_EMULATED_FUNCTION(ncclCommAbort),
     FSDP_EMULATED_FUNCTION(ncclCommFinalize), FSDP_EMULATED_FUNCTION(ncclCommDestroy),
     FSDP_EMULATED_FUNCTION(ncclAllGather), FSDP_EMULATED_FUNCTION(ncclReduceScatter),
     FSDP_EMULATED_FUNCTION(ncclAllReduce), FSDP_EMULATED_FUNCTION(ncclAlltoAll),
     FSDP_EMULATED_FUNCTION(ncclBroadcast), FSDP_EMULATED_FUNCTION(ncclGroupStart),
     FSDP_EMULATED_FUNCTION(ncclGroupEnd), FSDP_EMULATED_FUNCTION(ncclSend),
     FSDP_EMULATED_FUNCTION(ncclRecv)});

}  // namespace
}  // namespace fsdp
