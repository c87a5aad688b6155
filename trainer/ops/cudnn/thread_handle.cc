#include "trainer/ops/cudnn/thread_handle.h"

#include "trainer/core/errors.h"
#include "trainer/ops/cudnn/execution_plan.h"

namespace fsdp::cudnn {
namespace {

const Api& TheApi() {
  const FoundApi& found = FindApi();
  if (found.api == nullptr) throw DeviceError("no cuDNN: " + found.why_not);
  return *found.api;
}

Handle NewHandle(const Api& api) {
  Handle handle = nullptr;
  Check(api, api.create(&handle), "cudnnCreate");
  return handle;
}

}  // namespace

ThreadHandle& ThreadHandle::Get() {
  thread_local ThreadHandle handle;
  return handle;
}

Handle ThreadHandle::On(CudaStreamHandle stream) const {
  Check(api_, api_.set_stream(handle_, stream), "cudnnSetStream");
  stream.WillPut(kOperationsOfALibraryCall);
  return handle_;
}

ThreadHandle::ThreadHandle()
    : api_(TheApi()), handle_(NewHandle(api_)), gpu_(DevicePropertiesOf(api_, handle_)) {}

}  // namespace fsdp::cudnn
