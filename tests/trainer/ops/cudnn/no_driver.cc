// In place of a driver, for plans of cuDNN's on a host without a GPU: it looks for these functions,
// and wants of its calls that they succeed, and of one that there is a kernel.
#define FSDP_SUCCEEDS(name) \
  extern "C" int name() { return 0; }

FSDP_SUCCEEDS(cuCtxGetCurrent)
FSDP_SUCCEEDS(cuCtxGetLimit)
FSDP_SUCCEEDS(cuCtxPopCurrent)
FSDP_SUCCEEDS(cuCtxPushCurrent)
FSDP_SUCCEEDS(cuDeviceGet)
FSDP_SUCCEEDS(cuDeviceGetCount)
FSDP_SUCCEEDS(cuDriverGetVersion)
FSDP_SUCCEEDS(cuGetErrorName)
FSDP_SUCCEEDS(cuGetErrorString)
FSDP_SUCCEEDS(cuKernelGetAttribute)
FSDP_SUCCEEDS(cuKernelSetAttribute)
FSDP_SUCCEEDS(cuLaunchCooperativeKernel)
FSDP_SUCCEEDS(cuLaunchKernel)
FSDP_SUCCEEDS(cuLaunchKernelEx)
FSDP_SUCCEEDS(cuLibraryLoadData)
FSDP_SUCCEEDS(cuLibraryLoadFromFile)
FSDP_SUCCEEDS(cuLibraryUnload)
FSDP_SUCCEEDS(cuLinkAddData)
FSDP_SUCCEEDS(cuLinkComplete)
FSDP_SUCCEEDS(cuLinkCreate)
FSDP_SUCCEEDS(cuLinkDestroy)
FSDP_SUCCEEDS(cuOccupancyMaxPotentialClusterSize)
FSDP_SUCCEEDS(cuStreamGetCtx)

extern "C" int cuLibraryGetKernel(void** kernel) {
  *kernel = kernel;
  return 0;
}
