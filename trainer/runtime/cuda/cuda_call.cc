#include "trainer/runtime/cuda/cuda_call.h"

namespace fsdp {
namespace {

StreamValueCall Find(const char* symbol) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status;
  CheckCall(cudaGetDriverEntryPointByVersion(symbol, &function, /*version=*/12000,
                                             cudaEnableDefault, &status),
            symbol);
  if (function == nullptr) {
    throw DeviceError("the NVIDIA driver has no " + std::string(symbol));
  }
  return reinterpret_cast<StreamValueCall>(function);
}

}  // namespace

DriverCalls FindDriverCalls() {
  return {Find("cuStreamWaitValue32"), Find("cuStreamWriteValue32")};
}

}  // namespace fsdp
