// A named range of the calling thread, for profilers (NVTX). Does nothing where the toolkit is
// missing.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_PROFILER_RANGE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_PROFILER_RANGE_H_

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

namespace fsdp {

class ProfilerRange {
 public:
#ifdef NVTX_VERSION
  explicit ProfilerRange(const char* name) { nvtxRangePushA(name); }
  ~ProfilerRange() { nvtxRangePop(); }
#else
  explicit ProfilerRange(const char*) {}
#endif
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_PROFILER_RANGE_H_
