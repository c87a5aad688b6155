// Memory of a GPU for op tests, because a GPU has no pages that fault. The host has a copy of every
// tensor, from which each kernel starts:
//   - Before and behind each tensor lie kGuardBytes. They, and a tensor that the operation does not
//     declare, hold NaN while its kernel runs, of other bits for each tensor and each run: who
//     reads them has NaN, mostly of other bits in the next run, and who copies them over others' is
//     seen.
//   - A write outside of what the operation declares is seen when the operation ends, to the byte.
//   - The host cannot follow addresses of such memory.
#ifndef FSDP_TRAIN_TESTS_TESTING_GUARDED_MEMORY_H_
#define FSDP_TRAIN_TESTS_TESTING_GUARDED_MEMORY_H_

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "tests/testing/test_memory.h"

namespace fsdp {

inline constexpr int64_t kGuardBytes = 4096;

// Throws DeviceError. For tests, which wait for everything.
void CheckTestCall(cudaError_t error, const std::string& what);

// Copies go through `stream`. Calls throw DeviceError.
std::unique_ptr<TestMemory> CreateGuardedMemory(cudaStream_t stream);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TESTING_GUARDED_MEMORY_H_
