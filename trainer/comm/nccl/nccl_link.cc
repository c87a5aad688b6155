#include "trainer/comm/nccl/nccl_link.h"

#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "trainer/comm/patience.h"
#include "trainer/core/errors.h"
#include "trainer/core/left_behind.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {
namespace {

// The toolkit's header and the emulator's have the same values.
static_assert(NCCL_UNIQUE_ID_BYTES == 128 && sizeof(ncclUniqueId) == 128);
static_assert(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2 &&
              ncclInternalError == 3 && ncclInvalidArgument == 4 && ncclInvalidUsage == 5 &&
              ncclRemoteError == 6 && ncclInProgress == 7);
static_assert(ncclSum == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclInt64 == 4 &&
              ncclFloat16 == 6 && ncclFloat32 == 7 && ncclBfloat16 == 9);

template <typename Function>
void Resolve(const FoundGpuLibrary& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(library.function(name));
  if (function == nullptr) {
    throw DeviceError("NCCL: " + library.path + " has no " + name);
  }
}

}  // namespace

NcclLibrary::NcclLibrary() {
  (void)SetGpuEnvironment();
  const FoundGpuLibrary found = FindGpuLibrary(GpuLibrary::kNccl, GpuLibraryPlaces());
  if (!found.function) {
    throw DeviceError("ranks with a GPU each need NCCL, " +
                      GpuLibraryVersionText(OldestVersion(GpuLibrary::kNccl)) +
                      " or newer: " + found.why_not);
  }
  path = found.path;
  version = found.version;
  Resolve(found, "ncclGetErrorString", GetErrorString);
  Resolve(found, "ncclGetLastError", GetLastError);
  Resolve(found, "ncclGetUniqueId", GetUniqueId);
  Resolve(found, "ncclCommInitRankConfig", CommInitRankConfig);
  Resolve(found, "ncclCommGetAsyncError", CommGetAsyncError);
  Resolve(found, "ncclCommFinalize", CommFinalize);
  Resolve(found, "ncclCommDestroy", CommDestroy);
  Resolve(found, "ncclCommAbort", CommAbort);
  Resolve(found, "ncclAllGather", AllGather);
  Resolve(found, "ncclReduceScatter", ReduceScatter);
  Resolve(found, "ncclAllReduce", AllReduce);
  Resolve(found, "ncclAlltoAll", AlltoAll);
  Resolve(found, "ncclBroadcast", Broadcast);
  Resolve(found, "ncclGroupStart", GroupStart);
  Resolve(found, "ncclGroupEnd", GroupEnd);
  Resolve(found, "ncclSend", Send);
  Resolve(found, "ncclRecv", Recv);
}

namespace {

// A launch, for which NCCL starts a thread, is over before a sleep would be: the kernel's timers
// alone add 50 us to one. So the first polls, some 100 us of them, only yield.
constexpr int kSpins = 200;
constexpr std::chrono::microseconds kPoll{50};
constexpr std::chrono::milliseconds kPollConnecting{2};

std::string Text(const NcclLibrary& nccl, ncclResult_t error, ncclComm_t comm) {
  std::string text = nccl.GetErrorString(error);
  const char* const last = nccl.GetLastError(comm);
  if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
  return text;
}

// NCCL may read a communicator's name for as long as it is ending it, on a thread of its own.
const char* KeepForEver(const std::string& name) {
  static std::mutex mutex;
  static auto* const names = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return names->insert(name).first->c_str();
}

}  // namespace

ncclUniqueId MakeNcclId(const NcclLibrary& nccl) {
  ncclUniqueId id = {};
  const ncclResult_t result = nccl.GetUniqueId(&id);
  if (result != ncclSuccess) throw CommError("ncclGetUniqueId: " + Text(nccl, result, nullptr));
  return id;
}

NcclLink::NcclLink(std::shared_ptr<const NcclLibrary> nccl, const std::string& name,
                   const ncclUniqueId& id, int rank, int size, int max_blocks, double patience_s)
    : nccl_(std::move(nccl)), patience_s_(patience_s) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = KeepForEver(name);
  if (max_blocks > 0) config.maxCTAs = max_blocks;
  ncclComm_t comm = nullptr;
  const ncclResult_t result = nccl_->CommInitRankConfig(&comm, size, id, rank, &config);
  comm_ = comm;
  if (result == ncclSuccess || result == ncclInProgress) return;
  const std::string why = "ncclCommInitRankConfig: " + Text(*nccl_, result, nullptr);
  Abort();
  throw CommError(why);
}

void NcclLink::Connect(const std::function<void()>& give_up) {
  while (InProgress("ncclCommInitRankConfig")) {
    give_up();
    std::this_thread::sleep_for(kPollConnecting);
  }
}

void NcclLink::Do(const char* what, const Call& call) {
  {
    std::lock_guard lock(mutex_);
    const ncclComm_t comm = comm_;
    if (comm == nullptr) throw CommError(std::string(what) + ": aborted");
    const ncclResult_t result = call(*nccl_, comm);
    if (result == ncclSuccess) return;
    if (result != ncclInProgress) throw CommError(std::string(what) + ": " + Describe(result));
  }
  for (int i = 0; InProgress(what); ++i) {
    i < kSpins ? std::this_thread::yield() : std::this_thread::sleep_for(kPoll);
  }
}

bool NcclLink::InProgress(const char* what) {
  std::lock_guard lock(mutex_);
  const ncclComm_t comm = comm_;
  if (comm == nullptr) throw CommError(std::string(what) + ": aborted");
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl_->CommGetAsyncError(comm, &state);
  if (asked != ncclSuccess) state = asked;
  if (state != ncclSuccess && state != ncclInProgress) {
    throw CommError(std::string(what) + ": " + Describe(state));
  }
  return state == ncclInProgress;
}

std::string NcclLink::AsyncError() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  const ncclComm_t comm = lock.owns_lock() ? comm_.load() : nullptr;
  if (comm == nullptr) return "";
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl_->CommGetAsyncError(comm, &state);
  if (asked != ncclSuccess) state = asked;
  return state == ncclSuccess || state == ncclInProgress ? "" : Describe(state);
}

std::string NcclLink::Describe(ncclResult_t error) { return Text(*nccl_, error, comm_); }

void NcclLink::Abort() {
  Patience patience(kCallPatience);
  std::unique_lock lock(mutex_, std::try_to_lock);
  while (!lock.owns_lock() && !patience.over()) {
    std::this_thread::sleep_for(kPoll);
    (void)lock.try_lock();
  }
  const ncclComm_t comm = comm_.exchange(nullptr);
  if (!lock.owns_lock()) {  // An abort frees what the call that is inside uses.
    CountLeftBehind();
    return;
  }
  lock.unlock();
  if (comm == nullptr) return;
  EndWithin(patience_s_, [nccl = nccl_, comm] { (void)nccl->CommAbort(comm); });
}

void NcclLink::Finish() {
  std::unique_lock lock(mutex_);
  const ncclComm_t comm = comm_.exchange(nullptr);
  lock.unlock();
  if (comm == nullptr) return;
  const double finish_s = patience_s_ / 2;
  EndWithin(finish_s + patience_s_, [nccl = nccl_, comm, finish_s] {
    ncclResult_t state = nccl->CommFinalize(comm);
    if (state == ncclSuccess) state = ncclInProgress;  // It has begun.
    Patience patience(std::chrono::duration_cast<Patience::Clock::duration>(
        std::chrono::duration<double>(finish_s)));
    while (state == ncclInProgress && !patience.over()) {
      std::this_thread::sleep_for(kPoll);
      const ncclResult_t asked = nccl->CommGetAsyncError(comm, &state);
      if (asked != ncclSuccess) state = asked;
    }
    (void)(state == ncclSuccess ? nccl->CommDestroy(comm) : nccl->CommAbort(comm));
  });
}

}  // namespace fsdp
