#include "trainer/comm/nccl/nccl_api.h"

#include <cstdlib>

#include "trainer/core/errors.h"
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
  // Communicators are in flight together, on streams of their own. Without this, which is off by
  // default, NCCL's guide says (2.28, "Using multiple NCCL communicators concurrently"), they may
  // wait for each other for ever. Read when NCCL is opened.
  (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
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

}  // namespace fsdp
