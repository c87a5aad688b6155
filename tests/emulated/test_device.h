// An optional part of a program of op tests on the emulator, beside their kernels.
#ifndef FSDP_TRAIN_TESTS_EMULATED_TEST_DEVICE_H_
#define FSDP_TRAIN_TESTS_EMULATED_TEST_DEVICE_H_

#include "trainer/ops/gemm_library.h"

namespace fsdp {

// Multiplies for the products of its operations. A program without it multiplies by kernels of
// ours.
[[gnu::weak]] GemmResources GemmUnderTest();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_TEST_DEVICE_H_
