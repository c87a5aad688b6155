// Copies between memory of the device and pinned memory.
// Tests: tests/trainer/comm/pinned_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_COPY_ROWS_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_COPY_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "trainer/runtime/cuda_stream.h"

namespace fsdp {

// Copies rows, which begin a pitch apart; all numbers are bytes. Either side may be on the GPU.
// Null where the program was built without CUDA; throws DeviceError.
struct Rows {
  int64_t rows = 1, bytes = 0;
  int64_t to_pitch = 0, from_pitch = 0;
};
[[gnu::weak]] void CopyRowsCuda(CudaStreamHandle stream, const Rows& rows, std::byte* to,
                                const std::byte* from);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_COPY_ROWS_H_
