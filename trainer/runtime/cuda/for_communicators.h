// Work of communicators on a CUDA stream: failures that the GPU does not know of, and copies
// between its memory and pinned memory.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_FOR_COMMUNICATORS_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_FOR_COMMUNICATORS_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>

#include "trainer/runtime/cuda_stream_handle.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Fails a stream at the place it had reached when this was made, as if an operation threw there:
// see stream.h. Any thread may call it at any time, also when the stream and its device are gone. A
// stream's first failure counts.
using FailHere = std::function<void(std::exception_ptr error)>;

// Makes a FailHere for the place behind all work enqueued so far on this stream of a CUDA device.
// `name`, a literal, is the operation that Position() gives for the failure. The caller must fail
// the stream first and let the GPU past the stuck work afterwards: an event that passes before the
// call counts as good. Null where the program was built without CUDA.
[[gnu::weak]] FailHere MayFailHere(Stream& stream, const char* name);

// Copies rows, which begin a pitch apart; all numbers are bytes. Either side may be on the GPU.
// Null where the program was built without CUDA; throws DeviceError.
struct Rows {
  int64_t rows = 1, bytes = 0;
  int64_t to_pitch = 0, from_pitch = 0;
};
[[gnu::weak]] void CopyRowsCuda(CudaStreamHandle stream, const Rows& rows, std::byte* to,
                                const std::byte* from);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_FOR_COMMUNICATORS_H_
