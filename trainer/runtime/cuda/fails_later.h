// Work of a CUDA stream that fails after it has been enqueued, by what the GPU does not know: a
// collective whose peer has gone.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_FAILS_LATER_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_FAILS_LATER_H_

#include <exception>
#include <functional>

#include "trainer/runtime/stream.h"

namespace fsdp {

// Fails a stream at a place that it had when this was made, as an operation does that throws there:
// see stream.h. From any thread, at any time, also when the stream and its device are gone; a
// stream's first failure counts.
using FailHere = std::function<void(std::exception_ptr error)>;

// Of the place behind all that is enqueued on this stream of a CUDA device so far; `name`, a
// literal, is what the stream is in where it fails (Position()). Whoever fails it does so first and
// then lets the GPU past what is stuck there: an event that passes before is a good one. Null where
// the program was built without CUDA.
[[gnu::weak]] FailHere MayFailHere(Stream& stream, const char* name);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_FAILS_LATER_H_
