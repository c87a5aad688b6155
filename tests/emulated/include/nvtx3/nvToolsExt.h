// Ranges of the calling thread, in place of the toolkit's header. See tests/emulated/profiler.h.
#ifndef FSDP_TRAIN_TESTS_EMULATED_INCLUDE_NVTX3_NVTOOLSEXT_H_
#define FSDP_TRAIN_TESTS_EMULATED_INCLUDE_NVTX3_NVTOOLSEXT_H_

#define NVTX_VERSION 3

int nvtxRangePushA(const char* message);
int nvtxRangePop();

#endif  // FSDP_TRAIN_TESTS_EMULATED_INCLUDE_NVTX3_NVTOOLSEXT_H_
