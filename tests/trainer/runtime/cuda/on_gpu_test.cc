// The promises of every device, kept by the CUDA device: on the emulator's runtime, and, linked
// into the kit's tests (//tests/trainer/ops:gpu_op_tests), on a GPU.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/trainer/runtime/stream_suite.h"
#include "trainer/runtime/cuda/cuda_device.h"

namespace fsdp {
namespace {

DeviceCase Cuda() {
  return {"cuda",
          [](std::shared_ptr<StreamChecker> checker) {
            return CreateCudaDevice({.checker = std::move(checker)});
          },
          int64_t{1} << 60};
}
const auto kGpu = ::testing::Values(Cuda());

INSTANTIATE_TEST_SUITE_P(Gpu, StreamSuite, kGpu, DeviceName);
INSTANTIATE_TEST_SUITE_P(Gpu, CheckedStreamSuite, kGpu, DeviceName);
INSTANTIATE_TEST_SUITE_P(Gpu, BufferSuite, kGpu, DeviceName);
INSTANTIATE_TEST_SUITE_P(Gpu, StreamFailureSuite, kGpu, DeviceName);
INSTANTIATE_TEST_SUITE_P(Gpu, GoingOnSuite, kGpu, DeviceName);

}  // namespace
}  // namespace fsdp
